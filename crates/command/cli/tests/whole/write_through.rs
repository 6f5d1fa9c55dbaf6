//! Writes that are acknowledged when they are durable.

use crate::harness::{Scene, noise};
use crate::nbd_client::Client;

const BLOCK: usize = 4096;

#[test]
fn an_acknowledged_write_outlives_the_server() {
    for options in [&[][..], &["--cipher", "xts-random"]] {
        let scene = Scene::with_disk(&[&["--size", "64M"], options].concat());
        let mut server = scene.serve(&["--write-through"]);
        let written = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..4u64)
                .map(|client| {
                    let socket = server.socket.clone();
                    scope.spawn(move || {
                        let mut connection = Client::connect(&socket).unwrap();
                        for n in 0..40 {
                            let block = client * 2000 + n * 3;
                            connection.write_at(block * BLOCK as u64, &noise(block + 1, BLOCK)).unwrap();
                        }
                        // A sequential write, and a discard of its middle.
                        let at = (32 + client) << 20;
                        connection.write_at(at, &noise(client + 7, 1 << 20)).unwrap();
                        connection.discard(at + (256 << 10), 256 << 10).unwrap();
                    })
                })
                .collect();
            clients.into_iter().all(|client| client.join().is_ok())
        });
        assert!(written);
        // No client has flushed.
        server.kill();
        scene.serve(&["--read-only"]).used_by(|connection| {
            for client in 0..4u64 {
                for n in 0..40 {
                    let block = client * 2000 + n * 3;
                    let data = connection.read_at(block * BLOCK as u64, BLOCK).unwrap();
                    assert!(data == noise(block + 1, BLOCK), "{options:?}: block {block} is lost");
                }
                let mut expected = noise(client + 7, 1 << 20);
                expected[256 << 10..512 << 10].fill(0);
                assert!(connection.read_at((32 + client) << 20, 1 << 20).unwrap() == expected);
            }
        });
    }
}

#[test]
fn a_disk_with_levels_refuses_write_through() {
    for format in ["deniable", "oblivious"] {
        let scene = Scene::with_disk(&["--size", "100M", "--format", format]);
        let args = ["serve", "disk.img", "--key-file", "key", "--socket", "s", "--write-through"];
        let refused = scene.lacuna(&args).code(1).stderr;
        assert!(refused.contains("--write-through") && refused.contains("levels"), "{refused}");
    }
}
