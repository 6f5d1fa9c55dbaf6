//! Whole-program tests: the real binary, driven with real clients. What this machine lacks a program or a
//! privilege for is skipped, and the test says so.

mod access_time;
mod books;
mod clients;
mod crash;
mod damage;
mod discreet;
mod everyday;
mod keys;
mod levels;
mod levels_kills;
mod mounted;
mod nbd_client;
mod pool;
mod rados;
mod rados_clients;
mod rados_faults;
mod rados_kills;
mod rados_refused;
mod rados_writers;
mod reading;
mod refused;
mod robbed;
mod scene;
mod traces;
