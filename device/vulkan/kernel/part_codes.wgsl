// Small whole numbers inside words become float32 by bits, where they are: the float32 2²³ + v has v in its last bits. A number in
// the second byte of a word is 256 times itself; those in the upper bytes are shifted down first. x is multiplied to match.
// args.lift are the bits of 2²³: with a mask and a constant, compilers need two instructions where one has room.

fn lifted(v: vec4<u32>) -> vec4<f32> { return bitcast<vec4<f32>>(v | vec4<u32>(args.lift)); }

// The factors of four columns whose numbers are the bytes of a word.
fn for_bytes(x: vec4<f32>) -> vec4<f32> { return x * vec4<f32>(1.0, 0.00390625, 1.0, 0.00390625); }

// s + Σ (b − zero)·x over the bytes b of a word of each row.
fn bytes(v: vec4<u32>, zero: f32, x: vec4<f32>, s: vec4<f32>) -> vec4<f32> {
  let up = v >> vec4<u32>(16u);
  let first = 8388608.0 + zero;
  let second = 8388608.0 + zero * 256.0;
  let s0 = fma(lifted(v & vec4<u32>(0xffu)) - first, vec4<f32>(x.x), s);
  let s1 = fma(lifted(v & vec4<u32>(0xff00u)) - second, vec4<f32>(x.y), s0);
  let s2 = fma(lifted(up & vec4<u32>(0xffu)) - first, vec4<f32>(x.z), s1);
  return fma(lifted(up & vec4<u32>(0xff00u)) - second, vec4<f32>(x.w), s2);
}

// The float32 of IEEE halves in the last 16 bits of words, exactly, as half of part_half.
fn halves(h: vec4<u32>) -> vec4<f32> {
  let b = (h << vec4<u32>(13u)) & vec4<u32>(0x0fffe000u);
  let subnormal = bitcast<vec4<f32>>(b + 0x38800000u) - 0.00006103515625;
  let normal = bitcast<vec4<f32>>(b + select(vec4<u32>(0x38000000u), vec4<u32>(0x70000000u), b >= vec4<u32>(0x0f800000u)));
  let v = select(normal, subnormal, b < vec4<u32>(0x00800000u));
  return bitcast<vec4<f32>>(bitcast<vec4<u32>>(v) | ((h << vec4<u32>(16u)) & vec4<u32>(0x80000000u)));
}
