//! HCTR2 against published vectors, an independent crate, and the other engine.

use super::*;
use crate::random::{RandomSource, SeededRandom};
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

fn hex(text: &str) -> Vec<u8> {
    HEXLOWER.decode(text.as_bytes()).unwrap()
}

fn random_key(random: &SeededRandom) -> [u8; 32] {
    let mut key = [0; 32];
    random.fill(&mut key);
    key
}

/// Every engine that this machine can run.
fn engines(key: &[u8; 32]) -> Vec<(&'static str, Hctr2Key)> {
    let mut engines = vec![("portable", Hctr2Key(Hctr2Engine::Portable(Box::new(PortableKey::new(key)))))];
    #[cfg(target_arch = "x86_64")]
    if let Some(vector) = x86::VectorKey::new(key) {
        engines.push(("vector", Hctr2Key(Hctr2Engine::Vector(vector))));
    } else {
        // Not eprintln: the test runner would capture it.
        let why = b"skipped: this machine has no VAES and VPCLMULQDQ on 512 bits\n";
        let _ = std::io::Write::write_all(&mut std::io::stderr(), why);
    }
    engines
}

/// Key, tweak, plaintext, ciphertext. The first three are those of github.com/google/hctr2
/// (HCTR2_AES256), the last three those of the Linux kernel (crypto/testmgr.h).
const VECTORS: &[[&str; 4]] = &[
    [
        "7fc7152ae1f5fda4176769aec92bba82a314e7cfadfd8540da7b7d24bdf17d07",
        "",
        "9be382c65ac19fad4659b80bacc857a0",
        "596a76ff906fbe9b792767778fed2361",
    ],
    [
        "93ea527d3af227fc39a45851f4e0fda3d790112f8bd7ecaf583d93980800decd",
        "",
        "84ece276218ef95b3909227107a9d89192",
        "8e6816ce7b66973882fcb55200bb784fdb",
    ],
    [
        "e2a20e853c6ed64a9855de22a9abed13d3c9dd75e0d495f92dddf22b3851047e",
        "",
        "19b89858929409d5521f8e7e9920424f6cd4d2adfebfae1ae73b551e7cf3d15502d4fa02fd12f71e73415c8c3112fdc5",
        "b4df5db4b89bb2af144d7be1bbf816f61e63f67137ba61bef87c6628624f3424a40ad97b7a93ea37707ddc1429f3a8c7",
    ],
    [
        "9eebb2493c1cf5f46a99c2c4dfb1f4dd752057ea2c4fcdb2a53d7b491eabfd0f",
        "df63d4abd249f3d8338137607dfa7308d8496d80e82f6254eb0ea9395b457f8a",
        "67c9f23084418e43fbf3b33e79367fe8",
        "2738784716d971352e7edd7e433cb840",
    ],
    [
        "93fa7ee20e67c439e7ca4795689d5e5a7c2619abc6ca6a4c45a69642ae6cffe7",
        "ea8247953b22a13a6aca244c507e23cd0e50e541b66529d8302300d254a7d656",
        "db1f1fecad836e5d19a5f63bb4935a576f",
        "f1466e9db301f06bc2ac5788486d407268",
    ],
    [
        "362b5797f85dcd995f1a5a441d920f27cc16d72b856399d3ba96a1dbd26068da",
        "ef5869b12c5e9a4724c1b169e112938f433d6d00db5ed8d9129afed9ff2daac4",
        "5ea8681985981223260accdb0a04b9df4db3487bb0e3c819435a4606942df2",
        "dbfdc803d0ecc1febd6437b88243624e7e54a3e224a727e8a4d5b36cb226b4",
    ],
];

#[test]
fn published_vectors() {
    for [key, tweak, plain, cipher] in VECTORS {
        let (tweak, plain, cipher) = (hex(tweak), hex(plain), hex(cipher));
        for (name, engine) in engines(&hex(key).try_into().unwrap()) {
            let mut out = vec![0; plain.len()];
            engine.encrypt(&tweak, &plain, &mut out);
            assert_eq!(out, cipher, "{name}, {} bytes", plain.len());
            engine.decrypt(&tweak, &cipher, &mut out);
            assert_eq!(out, plain, "{name}, {} bytes", plain.len());
        }
    }
}

/// Digests computed with a direct transcription of the paper into big integers, which passes the
/// vectors above.
#[test]
fn whole_blocks_match_the_digests_of_the_transcription() {
    let vectors = [
        (4096, "dc54b19624d7331f210072db164e26f4cd3c01c5116f496b59a3503accb5fc52"),
        (8201, "dac6d984c9276baf778278dd525293186300070c10a81659b3babff1b1ae0b97"),
    ];
    let key = std::array::from_fn(|i| i as u8);
    let tweak = 0x1_2345_6789_u128.to_le_bytes();
    for (len, digest) in vectors {
        let plain: Vec<u8> = (0..len).map(|i: usize| (i * 7 + (i >> 8) * 13 + 5) as u8).collect();
        for (name, engine) in engines(&key) {
            let mut out = vec![0; len];
            engine.encrypt(&tweak, &plain, &mut out);
            assert_eq!(Sha256::digest(&out).as_slice(), hex(digest), "{name}, {len} bytes");
        }
    }
}

#[test]
fn engines_agree_with_an_independent_crate() {
    let random = SeededRandom::new(2021);
    let lengths = (16..300).chain(496..530).chain(1000..1042).chain([
        2048, 4080, 4095, 4096, 4097, 4111, 4112, 4113, 4159, 4160, 4161, 8191, 8192, 8193, 12288, 65536,
        65543,
    ]);
    for (round, len) in lengths.enumerate() {
        let key = random_key(&random);
        let peer = hctr2_rs::Hctr2_256::new(&key);
        let mut plain = vec![0; len];
        random.fill(&mut plain);
        let mut tweak = vec![0; [16, 0, 1, 15, 17, 32, 31, 16, 40][round % 9]];
        random.fill(&mut tweak);
        let mut expected = vec![0; len];
        peer.encrypt(&plain, &tweak, &mut expected).unwrap();
        for (name, engine) in engines(&key) {
            let context = format!("{name}, {len} bytes, tweak of {}", tweak.len());
            let mut out = vec![0; len];
            engine.encrypt(&tweak, &plain, &mut out);
            assert!(out == expected, "encrypt {context}");
            engine.decrypt_in_place(&tweak, &mut out);
            assert!(out == plain, "decrypt in place {context}");
            engine.run_in_place(CipherDirection::Encrypt, &tweak, &mut out);
            assert!(out == expected, "encrypt in place {context}");
            engine.decrypt(&tweak, &expected, &mut out);
            assert!(out == plain, "decrypt {context}");
        }
    }
}

#[test]
fn nothing_is_read_or_written_outside_the_message() {
    let random = SeededRandom::new(9);
    for (name, engine) in engines(&random_key(&random)) {
        for len in [16, 17, 63, 64, 65, 511, 512, 513, 4095, 4096, 4097] {
            for shift in [0, 1, 16, 33] {
                let mut src = vec![0u8; len + 128];
                random.fill(&mut src);
                let mut dst = vec![0xee; len + 128];
                engine.encrypt(&[1; 16], &src[shift..shift + len], &mut dst[shift..shift + len]);
                assert!(dst[..shift].iter().chain(&dst[shift + len..]).all(|b| *b == 0xee), "{name} {len}");
                let (mut exact, aligned) = (vec![0; len], src[shift..shift + len].to_vec());
                engine.encrypt(&[1; 16], &aligned, &mut exact);
                assert!(exact == dst[shift..shift + len], "{name} {len} {shift}");
            }
        }
    }
}

#[test]
fn one_bit_changes_the_whole_block() {
    let random = SeededRandom::new(4);
    for (name, engine) in engines(&random_key(&random)) {
        let mut plain = vec![0; 4096];
        random.fill(&mut plain);
        let mut first = vec![0; 4096];
        engine.encrypt(&[0; 16], &plain, &mut first);
        for (byte, tweak) in [(0, 0), (15, 0), (16, 0), (2000, 0), (4095, 0), (0, 1)] {
            let mut changed = plain.clone();
            changed[byte] ^= u8::from(tweak == 0);
            let mut second = vec![0; 4096];
            engine.encrypt(&[tweak; 16], &changed, &mut second);
            let differing = first.iter().zip(&second).filter(|(a, b)| a != b).count();
            // 4080 are expected to differ, with a standard deviation of 4.
            assert!(differing > 4030, "{name}: byte {byte}, tweak {tweak}: {differing} bytes differ");
        }
    }
}

#[test]
#[should_panic(expected = "HCTR2 message of 15 bytes")]
fn a_short_message_is_refused() {
    let key = Hctr2Key::new(&Secret::copy_from(&[1; 32])).unwrap();
    key.encrypt(&[0; 16], &[0; 15], &mut [0; 15]);
}
