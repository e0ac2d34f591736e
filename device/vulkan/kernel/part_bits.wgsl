// Compilers of WGSL may assume that there is no NaN and no infinity, so both are told by their bits.

fn finite(x: f32) -> bool { return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u; }

// NaN, or +∞: what no logit may be. −∞ is an id that cannot occur.
fn spoiled(x: f32) -> bool {
  let b = bitcast<u32>(x);
  return (b & 0x7f800000u) == 0x7f800000u && b != 0xff800000u;
}

fn nan() -> f32 { return bitcast<f32>(0x7fc00000u | (args.groups & 0u)); }
