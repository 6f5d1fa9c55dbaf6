//! Every construction against published vectors or an independent implementation, and its error
//! cases.

use data_encoding::HEXLOWER;
use lacuna_contracts::{Kind, Secret, SecretVec};
use lacuna_crypto::{
    AesBlock, Argon2Cost, GcmKey, TagMismatch, XtsKey, constant_time_eq, derive, keyed_hash, stretch, unwrap,
    wrap,
};
use sha2::{Digest, Sha256};

fn hex(text: &str) -> Vec<u8> {
    HEXLOWER.decode(text.as_bytes()).unwrap()
}

fn fixed<const N: usize>(text: &str) -> [u8; N] {
    hex(text).try_into().unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + (i >> 8) * 13 + 5) as u8).collect()
}

fn counting_key() -> Secret<32> {
    Secret::copy_from(&std::array::from_fn(|i| i as u8))
}

/// The key of IEEE 1619-2007, annex B, vectors 10 to 14: digits of e, then of pi.
fn ieee_key() -> XtsKey {
    let key = "2718281828459045235360287471352662497757247093699959574966967627\
               3141592653589793238462643383279502884197169399375105820974944592";
    XtsKey::new(&Secret::copy_from(&fixed(key))).unwrap()
}

const IEEE_10: &str = "1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b5d31e276f8fe4a8d66b317f9ac683f44\
         680a86ac35adfc3345befecb4bb188fd5776926c49a3095eb108fd1098baec70aaa66999a72a82f27d848b21d4a741b0\
         c5cd4d5fff9dac89aeba122961d03a757123e9870f8acf1000020887891429ca2a3e7a7d7df7b10355165c8b9a6d0a7d\
         e8b062c4500dc4cd120c0f7418dae3d0b5781c34803fa75421c790dfe1de1834f280d7667b327f6c8cd7557e12ac3a0f\
         93ec05c52e0493ef31a12d3d9260f79a289d6a379bc70c50841473d1a8cc81ec583e9645e07b8d9670655ba5bbcfecc6\
         dc3966380ad8fecb17b6ba02469a020a84e18e8f84252070c13e9f1f289be54fbc481457778f616015e1327a02b140f1\
         505eb309326d68378f8374595c849d84f4c333ec4423885143cb47bd71c5edae9be69a2ffeceb1bec9de244fbe15992b\
         11b77c040f12bd8f6a975a44a0f90c29a9abc3d4d893927284c58754cce294529f8614dcd2aba991925fedc4ae74ffac\
         6e333b93eb4aff0479da9a410e4450e0dd7ae4c6e2910900575da401fc07059f645e8b7e9bfdef33943054ff84011493\
         c27b3429eaedb4ed5376441a77ed43851ad77f16f541dfd269d50d6a5f14fb0aab1cbb4c1550be97f7ab4066193c4caa\
         773dad38014bd2092fa755c824bb5e54c4f36ffda9fcea70b9c6e693e148c151";

#[test]
fn xts_gives_the_ciphertexts_of_ieee_1619() {
    let key = ieee_key();
    let mut session = key.session();
    let plain: Vec<u8> = (0..=255).chain(0..=255).collect();
    // The first bytes of each ciphertext; all of the first ciphertext.
    let vectors = [
        ("ff", IEEE_10),
        ("ffff", "77a31251618a15e6b92d1d66dffe7b50b50bad552305ba0217a610688eff7e11"),
        ("ffffff", "e387aaa58ba483afa7e8eb469778317ecf4cf573aa9d4eac23f2cdf914e4e200"),
        ("ffffffff", "bf53d2dade78e822a4d949a9bc6766b01b06a8ef70d26748c6a7fc36d80ae4c5"),
        ("ffffffffff", "64497e5a831e4a932c09be3e5393376daa599548b816031d224bbf50a818ed23"),
    ];
    for (number, expected) in vectors {
        let mut tweak = [0; 16];
        tweak[..number.len() / 2].copy_from_slice(&hex(number));
        let mut out = vec![0; plain.len()];
        session.encrypt(&tweak, &plain, &mut out);
        let expected = hex(expected);
        assert_eq!(&out[..expected.len()], expected);
        let mut back = vec![0; plain.len()];
        session.decrypt(&tweak, &out, &mut back);
        assert_eq!(back, plain);
    }
}

/// Computed with OpenSSL.
#[test]
fn xts_encrypts_a_whole_block() {
    let key = ieee_key();
    let mut session = key.session();
    let tweak = 0x1_2345_6789_u128.to_le_bytes();
    let mut block = vec![0; 4096];
    session.encrypt(&tweak, &pattern(4096), &mut block);
    assert_eq!(&block[..16], hex("4d8f737084be47064807ad330aafbf04"));
    assert_eq!(&block[4080..], hex("6b76490df7f9e9f84bced92ea4f54382"));
    let digest = "5e9bff3972e73a0ea70ce4ac20fe89eab46a668567db1f913ad74bf336938bfa";
    assert_eq!(Sha256::digest(&block).as_slice(), hex(digest));
    let mut other = block.clone();
    session.decrypt_in_place(&0x1_2345_6788_u128.to_le_bytes(), &mut other);
    assert_ne!(other, pattern(4096));
    session.decrypt_in_place(&tweak, &mut block);
    assert_eq!(block, pattern(4096));
}

#[test]
fn xts_refuses_equal_halves() {
    let refused = XtsKey::new(&Secret::copy_from(&[7; 64])).err().unwrap();
    assert_eq!(refused.kind(), Kind::Usage);
}

#[test]
#[should_panic(expected = "XTS unit of 0 bytes")]
fn xts_refuses_an_empty_unit() {
    ieee_key().session().encrypt(&[0; 16], &[], &mut []);
}

#[test]
fn xts_sessions_of_many_threads_do_not_disturb_each_other() {
    let key = ieee_key();
    let expected: Vec<Vec<u8>> = (0..64u128)
        .map(|n| {
            let mut block = vec![0; 512];
            key.session().encrypt(&n.to_le_bytes(), &pattern(512), &mut block);
            block
        })
        .collect();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for round in 0..20 {
                    let (mut outer, mut inner) = (key.session(), key.session());
                    for (n, expected) in expected.iter().enumerate() {
                        let mut block = vec![0; 512];
                        let session = if round % 2 == 0 { &mut outer } else { &mut inner };
                        session.encrypt(&(n as u128).to_le_bytes(), &pattern(512), &mut block);
                        assert_eq!(&block, expected);
                        session.decrypt_in_place(&(n as u128).to_le_bytes(), &mut block);
                        assert_eq!(block, pattern(512));
                    }
                }
            });
        }
    });
}

/// The GCM specification's test cases 13 to 16: key, nonce, associated data, plaintext, ciphertext,
/// tag.
const GCM: &[[&str; 6]] = &[
    [ZERO, "000000000000000000000000", "", "", "", "530f8afbc74536b9a963b4f1c4cb738b"],
    [
        ZERO,
        "000000000000000000000000",
        "",
        "00000000000000000000000000000000",
        "cea7403d4d606b6e074ec5d3baf39d18",
        "d0d1c8a799996bf0265b98b5d48ab919",
    ],
    [
        SPEC,
        "cafebabefacedbaddecaf888",
        "",
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72\
         1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255",
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa\
         8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad",
        "b094dac5d93471bdec1a502270e3cc6c",
    ],
    [
        SPEC,
        "cafebabefacedbaddecaf888",
        "feedfacedeadbeeffeedfacedeadbeefabaddad2",
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72\
         1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa\
         8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662",
        "76fc6ece0f4e1768cddf8853bb2d551b",
    ],
];
const ZERO: &str = "0000000000000000000000000000000000000000000000000000000000000000";
const SPEC: &str = "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308";

fn gcm(key: &str) -> GcmKey {
    GcmKey::new(&Secret::copy_from(&fixed(key))).unwrap()
}

#[test]
fn gcm_gives_the_results_of_its_specification_and_refuses_any_other() {
    for [key, nonce, aad, plain, cipher, tag] in GCM {
        let (key, nonce, tag) = (gcm(key), fixed::<12>(nonce), fixed::<16>(tag));
        let (aad, plain, cipher) = (hex(aad), hex(plain), hex(cipher));
        let mut out = vec![0; plain.len()];
        assert_eq!(key.seal(&nonce, &aad, &plain, &mut out), tag);
        assert_eq!(out, cipher);
        assert_eq!(key.open(&nonce, &aad, &cipher, &tag, &mut out), Ok(()));
        assert_eq!(out, plain);
        let mut in_place = cipher.clone();
        assert_eq!(key.open_in_place(&nonce, &aad, &mut in_place, &tag), Ok(()));
        assert_eq!(in_place, plain);

        let mut refused = |nonce: &[u8; 12], aad: &[u8], cipher: &[u8], tag: &[u8; 16]| {
            out.fill(0xee);
            assert_eq!(key.open(nonce, aad, cipher, tag, &mut out), Err(TagMismatch));
            assert!(out.iter().all(|b| *b == 0), "data that did not verify was returned");
            let mut in_place = cipher.to_vec();
            assert_eq!(key.open_in_place(nonce, aad, &mut in_place, tag), Err(TagMismatch));
            assert!(in_place.iter().all(|b| *b == 0), "data that did not verify was returned");
        };
        for bit in 0..128 {
            let mut tag = tag;
            tag[bit / 8] ^= 1 << (bit % 8);
            refused(&nonce, &aad, &cipher, &tag);
        }
        let mut other_nonce = nonce;
        other_nonce[11] ^= 1;
        refused(&other_nonce, &aad, &cipher, &tag);
        refused(&nonce, &[&aad[..], &[0]].concat(), &cipher, &tag);
        for byte in 0..cipher.len() {
            let mut cipher = cipher.clone();
            cipher[byte] ^= 0x80;
            refused(&nonce, &aad, &cipher, &tag);
        }
    }
}

/// Computed with OpenSSL.
#[test]
fn gcm_seals_a_whole_block_and_long_associated_data() {
    let (key, nonce) = (gcm(SPEC), fixed(GCM[3][1]));
    let mut out = vec![0; 4096];
    let tag = key.seal(&nonce, &pattern(20), &pattern(4096), &mut out);
    assert_eq!(tag.as_slice(), hex("1543eba779a992ebb3fe637f9eb99f90"));
    let digest = "ea502073f77c1336b24d06e6ff68b55a782565073c7a55a7c858e3118bfe7bd3";
    assert_eq!(Sha256::digest(&out).as_slice(), hex(digest));

    let mut aad = pattern(3 << 20);
    let tag = key.seal(&nonce, &aad, &[], &mut []);
    assert_eq!(tag.as_slice(), hex("10dabc3aa7514ce01697993795700c43"));
    assert_eq!(key.open(&nonce, &aad, &[], &tag, &mut []), Ok(()));
    aad[2 << 20] ^= 1;
    assert_eq!(key.open(&nonce, &aad, &[], &tag, &mut []), Err(TagMismatch));
}

#[test]
fn gcm_keys_serve_many_threads() {
    let (key, nonce) = (gcm(SPEC), fixed(GCM[3][1]));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let mut out = vec![0; 4096];
                    let tag = key.seal(&nonce, &pattern(20), &pattern(4096), &mut out);
                    assert_eq!(tag.as_slice(), hex("1543eba779a992ebb3fe637f9eb99f90"));
                }
            });
        }
    });
}

/// Computed with an independent HKDF. Changing any of these is a new format version.
#[test]
fn derived_keys_are_pinned() {
    let key = counting_key();
    let data = "a81b0b22f6488bee8b31344556d031e920ff9c08b5de56da99a0daf9c73415ea\
                caff1831a593601b402615097363927ec7bdfd0d557107718b225bfe65bb2516";
    assert_eq!(derive::<64>(&key, "data", b"").expose().as_slice(), hex(data));
    assert_eq!(derive::<32>(&key, "data", b"").expose().as_slice(), &hex(data)[..32]);
    assert_eq!(
        derive::<32>(&key, "slot", &[1, 2, 3]).expose().as_slice(),
        hex("2286bade82d447baf1384af183fe4c22c8274c72b078d283e30bf63114239116")
    );
    assert_eq!(derive::<16>(&key, "", b"").expose().as_slice(), hex("afaf0250f0d624595f5e79364b90bab6"));
}

/// Computed with OpenSSL.
#[test]
fn stretched_passphrases_are_pinned() {
    let salt = std::array::from_fn(|i| i as u8);
    let vectors = [
        ((64, 1, 1), "1278242c9eeb1909d026c3d0dfe3fce6142314a4f51caf2273faa9e51d5be22d"),
        ((256, 3, 4), "f9e11a93a2e07f0887e3e147d9dcadb8c8868d3f619dfb479757cc74cc0d5738"),
        ((4096, 2, 2), "8daec2bb5a2c6ff49ea1628e1ffdb706df8bf13cef49d3285af16e8e4152ca04"),
    ];
    for ((memory_kib, passes, lanes), expected) in vectors {
        let cost = Argon2Cost::new(memory_kib, passes, lanes).unwrap();
        let key = stretch(&SecretVec::new(b"correct horse".to_vec()), &salt, &cost).unwrap();
        assert_eq!(key.expose().as_slice(), hex(expected));
        let other = stretch(&SecretVec::new(b"correct horsf".to_vec()), &salt, &cost).unwrap();
        assert_ne!(other.expose(), key.expose());
    }
}

#[test]
fn costs_from_a_header_are_bounded() {
    let max = Argon2Cost::MAX_MEMORY_KIB;
    for (memory, passes, lanes) in [(8, 1, 1), (max, 16, 16), (1024, 256, 4), (128, 1, 16)] {
        let cost = Argon2Cost::new(memory, passes, lanes).unwrap();
        assert_eq!(Argon2Cost::from_bytes(&cost.to_bytes()).unwrap(), cost);
    }
    let bad = [
        (7, 1, 1),
        (127, 1, 16),
        (max + 1, 1, 1),
        (u32::MAX, u32::MAX, u32::MAX),
        (1024, 0, 1),
        (1024, 257, 1),
        (1024, 1, 0),
        (1024, 1, 17),
        (max, 17, 1),
    ];
    for (memory_kib, passes, lanes) in bad {
        assert_eq!(Argon2Cost::new(memory_kib, passes, lanes).unwrap_err().kind(), Kind::Corrupt);
        let cost = Argon2Cost { memory_kib, passes, lanes };
        assert!(Argon2Cost::from_bytes(&cost.to_bytes()).is_err());
        let refused = stretch(&SecretVec::new(Vec::new()), &[0; 32], &cost).err().unwrap();
        assert_eq!(refused.kind(), Kind::Corrupt);
    }
}

#[test]
fn wrapped_keys_open_under_the_same_key_nonce_and_data_alone() {
    let (key, nonce) = (counting_key(), [9; 12]);
    let wrapped = wrap(&key, &nonce, b"level 0", &[5; 96]);
    assert_eq!(wrapped.len(), 96 + 16);
    assert_eq!(unwrap(&key, &nonce, b"level 0", &wrapped).ok().unwrap().expose(), &[5; 96]);

    let refused = |key: &Secret<32>, nonce: &[u8; 12], aad: &[u8], wrapped: &[u8]| {
        assert_eq!(unwrap(key, nonce, aad, wrapped).err(), Some(TagMismatch));
    };
    refused(&Secret::copy_from(&[1; 32]), &nonce, b"level 0", &wrapped);
    refused(&key, &[8; 12], b"level 0", &wrapped);
    refused(&key, &nonce, b"level 1", &wrapped);
    for cut in 0..wrapped.len() {
        refused(&key, &nonce, b"level 0", &wrapped[..cut]);
        let mut flipped = wrapped.clone();
        flipped[cut] ^= 1;
        refused(&key, &nonce, b"level 0", &flipped);
    }
}

/// Computed with an independent HMAC.
#[test]
fn keyed_hashes_run_over_all_parts() {
    let expected = hex("d6347af4ff8b077922cdd2b8ecd2dde02a45723b9bbbdfe57a683f64d435d395");
    assert_eq!(keyed_hash(&counting_key(), &[b"one", b"two"]).as_slice(), expected);
    assert_eq!(keyed_hash(&counting_key(), &[b"", b"onetwo", b""]).as_slice(), expected);
    assert_ne!(keyed_hash(&counting_key(), &[b"one"]).as_slice(), expected);
}

#[test]
fn comparison_tells_equal_from_different() {
    assert!(constant_time_eq(b"", b""));
    assert!(constant_time_eq(b"abc", b"abc"));
    assert!(!constant_time_eq(b"abc", b"abd"));
    assert!(!constant_time_eq(b"abc", b"ab"));
}

/// FIPS 197, C.3.
#[test]
fn single_aes_blocks_match_fips_197() {
    let plain = std::array::from_fn(|i| i as u8 * 0x11);
    assert_eq!(
        AesBlock::new(&counting_key()).encrypt(plain).as_slice(),
        hex("8ea2b7ca516745bfeafc49904b496089")
    );
}
