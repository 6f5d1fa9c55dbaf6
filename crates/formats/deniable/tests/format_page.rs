//! Compares `docs/format/deniable.md` with the medium: parses the tables of the page, and reads a
//! fresh disk with nothing but them and the primitives that they name.

mod fixture;

use fixture::{DiskModel, UUID, fill, flush_hidden, master_keys, params};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Secret};
use lacuna_crypto::{AesBlock, GcmKey, derive};
use lacuna_deniable::{Levels, Params};
use lacuna_testkit::format_page::{Fields, FormatPage, number};
use lacuna_testkit::levels::{FreshDisk, fresh_disk};

fn page() -> FormatPage {
    FormatPage::read("deniable")
}

fn fields(heading: &str) -> Fields {
    page().fields(heading)
}

fn named(heading: &str, name: &str) -> u64 {
    page().number(heading, name)
}

/// The two keys of a level for a stripe.
struct StripeKeys(GcmKey, AesBlock);

impl StripeKeys {
    fn of(level: usize, salt: &[u8]) -> StripeKeys {
        let level_key: Secret<32> = derive(&master_keys(3)[level], "deniable level", &UUID);
        let both: Secret<64> = derive(&level_key, "deniable stripe", salt);
        let half = |at: usize| Secret::copy_from(both.expose()[at..at + 32].try_into().unwrap());
        StripeKeys(GcmKey::new(&half(0)).unwrap(), AesBlock::new(&half(32)))
    }

    fn open(&self, domain: &str, index: u8, aad: &[u8], bytes: &[u8], tag: &[u8]) -> Vec<u8> {
        let mut nonce = [0; 12];
        nonce[..2].copy_from_slice(&[named_domain(domain), index]);
        let mut plain = vec![0; bytes.len()];
        self.0.open(&nonce, aad, bytes, tag.try_into().unwrap(), &mut plain).expect(domain);
        plain
    }
}

fn named_domain(name: &str) -> u8 {
    u8::try_from(named("Keys", name)).unwrap()
}

/// The medium of a disk with one block of each level.
fn written(params: &Params) -> Vec<u8> {
    let FreshDisk { memory, disk, levels } = fresh_disk(params, 2, [1, 2]);
    for (level, stamp) in levels.iter().zip([11, 22]) {
        let mut block = vec![0; BLOCK_SIZE];
        fill(7, stamp, &mut block);
        level.write(BlockAddr(7), &block).unwrap();
    }
    flush_hidden(&disk, &levels[1]).unwrap();
    disk.close().unwrap();
    memory.snapshot()
}

#[test]
fn constants_and_parameters_match_the_page() {
    let p = params();
    let encoded = p.encode();
    let field = fields("Parameters");
    let value = |name: &str| field.number(&encoded, name);
    assert_eq!(value("version"), 1);
    assert_eq!(value("public slots"), u64::from(p.geometry.public));
    assert_eq!(value("hidden slots"), u64::from(p.geometry.hidden));
    assert_eq!(value("spare"), u64::from(p.spare_permille));
    assert_eq!(value("gap"), u64::from(p.gap));
    assert_eq!(value("cycle"), u64::from(p.cycle));
    assert_eq!(value("stripes"), p.stripes);
    assert_eq!(value("blocks"), p.blocks);
    assert_eq!(value("cover"), u64::from(p.cover_millis));
    assert_eq!(named("Constants", "block"), BLOCK_SIZE as u64);
    let stripe = (1 + value("public slots") + value("hidden slots")) * named("Constants", "block");
    assert_eq!(p.end(), named("Constants", "log") + p.stripes * stripe);
}

/// The hidden slots of a level, as the page defines them.
fn slots_of(level: usize, all: usize) -> std::ops::Range<usize> {
    let mut first = 0;
    for at in 1.. {
        let share = ((all - first) * 3 / 4).max(usize::from(at == 1));
        if at == level {
            return first..first + share;
        }
        first += share;
    }
    unreachable!("levels are counted from 1")
}

#[test]
fn level_slots_and_lengths_match_the_page() {
    let p = params();
    for (level, blocks) in (1..).zip(fixture::models(&p, 3)[1..].iter().map(DiskModel::blocks)) {
        let slots = slots_of(level, usize::from(p.geometry.hidden));
        assert_eq!(p.slots(level as u8), slots);
        let live = (p.stripes - u64::from(p.gap)) * slots.len() as u64;
        let usable = live - live * u64::from(p.spare_permille) / 1000;
        // These levels have a map of one page, or of three.
        let pages = |blocks: u64| if blocks <= 512 { 1 } else { 1 + blocks.div_ceil(512) };
        let most = (0..usable).rfind(|blocks| blocks + pages(*blocks) + 16 <= usable).unwrap();
        let level_key: Secret<32> = derive(&master_keys(3)[level], "deniable level", &UUID);
        let drawn: Secret<8> = derive(&level_key, "deniable length", &[]);
        let short = u64::from_le_bytes(*drawn.expose()) % (most / 16 + 1);
        assert_eq!(blocks, most - short, "level {level}");
    }
}

#[test]
fn a_stripe_matches_the_page() {
    let p = params();
    let bytes = written(&p);
    let (slots, hidden_slots) = (usize::from(p.geometry.public), usize::from(p.geometry.hidden));
    let stripe_len = (1 + slots + hidden_slots) * BLOCK_SIZE;
    let log = named("Constants", "log") as usize;
    let summary_fields = fields("Summary");
    let roots = summary_fields["hidden roots"].clone();
    let entries_at = roots.end;
    let public_at = entries_at + hidden_slots * 48;
    let part = |name: &str| summary_fields[name].clone();
    let public_fields = fields("Public part");
    let root_fields = fields("Root record");
    let root_len = root_fields.byte_len();
    let data = named_entry("data");
    let (mut found, mut previous) = ([0; 2], Vec::new());
    // `create` wrote stripe 1; the ring has not wrapped around.
    for seq in 1..10usize {
        let at = log + seq * stripe_len;
        let stripe = &bytes[at..at + stripe_len];
        let salt = &stripe[part("salt")];
        let keys = StripeKeys::of(0, salt);
        let aad = &stripe[part("digest").start..public_at];
        let public = keys.open("summary", 0, aad, &stripe[public_at..BLOCK_SIZE], &stripe[part("tag")]);
        assert_eq!(public_fields.number(&public, "seq"), seq as u64);
        assert!(seq == 1 || public_fields.get(&public, "previous") == previous);
        previous = salt[..16].to_vec();
        let hidden_at = (1 + slots) * BLOCK_SIZE;
        let heads: Vec<u8> =
            stripe[hidden_at..].chunks(512).flat_map(|sector| sector[..16].to_vec()).collect();
        keys.open("digest", 0, &heads, &[], &stripe[part("digest")]);
        let deep = StripeKeys::of(1, salt);
        let root = &stripe[roots.start..roots.start + 48];
        let root = deep.open("root", 1, &[], &root[..root_len], &root[root_len..]);
        assert!(root_fields.number(&root, "data") <= 1);

        let aad = |entry: u64| [(seq as u64).to_le_bytes(), entry.to_le_bytes()].concat();
        let first = public_fields["root"].end;
        for slot in 0..slots {
            let listed = &public[first + slot * 24..first + (slot + 1) * 24];
            let entry = number(&listed[..8]);
            let body = &stripe[(1 + slot) * BLOCK_SIZE..(2 + slot) * BLOCK_SIZE];
            let plain = keys.open("slot", slot as u8, &aad(entry), body, &listed[8..]);
            if entry >> 56 == data {
                assert_eq!((entry & !(0xff << 56), fixture::stamp_of(7, &plain)), (7, Some(11)));
                found[0] += 1;
            }
        }
        for slot in 0..hidden_slots {
            let listed = &stripe[entries_at + slot * 32..entries_at + (slot + 1) * 32];
            let mut block = [0; 16];
            block[..2].copy_from_slice(&[named_domain("entry"), slot as u8]);
            let pad = deep.1.encrypt(block);
            let plain: Vec<u8> = listed[..16].iter().zip(pad).map(|(byte, pad)| byte ^ pad).collect();
            let entry = number(&plain[..8]);
            if plain[8..].iter().all(|&b| b == 0) && entry >> 56 == data {
                let body = &stripe[hidden_at + slot * BLOCK_SIZE..hidden_at + (slot + 1) * BLOCK_SIZE];
                let plain = deep.open("slot", slot as u8, &aad(entry), body, &listed[16..]);
                assert_eq!(fixture::stamp_of(7, &plain), Some(22));
                assert!(slots_of(1, hidden_slots).contains(&slot));
                found[1] += 1;
            }
        }
        if found == [1, 1] {
            return;
        }
    }
    panic!("found {found:?}");
}

fn named_entry(name: &str) -> u64 {
    named("Entries", name)
}

#[test]
fn a_checkpoint_matches_the_page() {
    let bytes = written(&params());
    let field = fields("Checkpoint");
    let first = field["seq"].start;
    let mut found = Vec::new();
    for turn in 0..2u8 {
        let block = &bytes[named("Constants", "checkpoints") as usize + usize::from(turn) * BLOCK_SIZE..]
            [..BLOCK_SIZE];
        let slice = |name: &str| field.get(block, name);
        let body =
            StripeKeys::of(0, slice("salt")).open("checkpoint", turn, &[], &block[first..], slice("tag"));
        let inside = |name: &str| number(&body[field[name].start - first..field[name].end - first]);
        found.push((inside("seq"), inside("closed")));
    }
    found.sort_unstable();
    assert!(found[1].0 > 1 && found[1].1 == 1, "{found:?}");
}
