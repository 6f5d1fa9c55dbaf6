//! Whole-program tests: the real binary, driven with real clients. What this machine lacks a program or a
//! privilege for is skipped, and the test says so.

mod access_time;
mod books;
mod clients;
mod closing;
mod crash;
mod damage;
mod defaults;
mod discreet;
mod everyday;
mod full_host;
mod growth;
mod header;
mod keys;
mod levels;
mod levels_kills;
mod mounted;
mod names;
mod nbd_client;
mod places;
mod pool;
mod privileges;
mod rados;
mod rados_clients;
mod rados_faults;
mod rados_kills;
mod rados_writers;
mod raw_file;
mod reading;
mod refused;
mod requests;
mod scene;
mod traces;
mod typist;
mod write_through;
