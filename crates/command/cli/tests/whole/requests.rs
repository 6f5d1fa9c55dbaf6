//! The longest requests of NBD clients.

use crate::harness::{Scene, is_program_available, noise, skip_unless};
use crate::nbd_client::Client;

#[test]
fn a_request_of_64_mib_is_served() {
    skip_unless!(is_program_available("nbdinfo"));
    for format in ["sealed", "deniable"] {
        let scene = Scene::with_disk(&["--size", "256M", "--format", format]);
        let server = scene.serve(&[]);
        let size = scene.tool("nbdinfo", &["--json", &server.uri]).json();
        assert_eq!(size["exports"][0]["block_size_maximum"], 64 << 20);
        let content = noise(1, 64 << 20);
        let mut client = Client::connect(&server.socket).unwrap();
        client.write_at(4096, &content).unwrap();
        assert!(client.read_at(4096, 64 << 20).unwrap() == content, "{format}");
        assert_eq!(server.stop(), 0);
    }
}
