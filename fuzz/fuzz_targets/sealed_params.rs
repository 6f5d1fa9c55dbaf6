//! The parameters of the sealed format, on flat media and on objects: parameters that parse are
//! encoded to the same bytes and give a consistent geometry.
#![no_main]

use lacuna_sealed::Params;
use lacuna_sealed_objects::ObjectParams;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Ok(params) = ObjectParams::parse(input) {
        assert_eq!(params.encode(), input);
        assert!(params.segments() * 1024 >= params.blocks);
    }
    let Ok(params) = Params::parse(input) else { return };
    assert_eq!(params.encode(), input);
    let g = params.geometry();
    assert!(g.journal < g.map && g.map < g.map_end && g.map_end <= g.data);
    assert!(g.slots > g.segments);
    let slots = u64::from(g.slots);
    assert_eq!(g.end(), g.data + slots.div_ceil(8) * g.group_meta + (slots << 22));
});
