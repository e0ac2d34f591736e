// The float32 of an IEEE half, exactly, subnormal ones too.
fn half(h: u32) -> f32 {
  let sign = (h & 0x8000u) << 16u;
  let e = (h >> 10u) & 31u;
  let m = h & 1023u;
  if (e == 0u) {
    let v = f32(m) * 5.9604644775390625e-8;
    return select(v, -v, sign != 0u);
  }
  let wide = select(e + 112u, 255u, e == 31u);
  return bitcast<f32>(sign | (wide << 23u) | (m << 13u));
}
