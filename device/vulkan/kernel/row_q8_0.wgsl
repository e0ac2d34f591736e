//apr:kernel y:rw x:r:vec4<f32> w:r:u32 bias:r | n:u32 columns:u32 add:u32 biased:u32
//apr:include row half

// y = w·x + bias, or added to y, of one row of x; w in Q8_0 (see weight_q8_0). A lane has two words of a block.

fn codes(v: u32) -> vec4<f32> { return small((vec4<u32>(v ^ 0x80808080u) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u)) - 128.0; }

fn piece(block: u32, q: u32, a: vec4<f32>, b: vec4<f32>) -> f32 {
  return half(w[block] & 0xffffu) * added(fma(codes(w[block + 2u + 2u * q]), b, codes(w[block + 1u + 2u * q]) * a));
}

fn row_sums(row: u32, lane: u32) -> vec4<f32> {
  let q = lane % 4u;
  var s = vec4<f32>();
  for (var i = lane / 4u; i < args.columns / 32u; i += 8u) {
    let at = args.x_at / 4u + 8u * i + 2u * q;
    let a = x[at];
    let b = x[at + 1u];
    s += vec4<f32>(piece(row_at(row) + 9u * i, q, a, b), piece(row_at(row + 1u) + 9u * i, q, a, b),
      piece(row_at(row + 2u) + 9u * i, q, a, b), piece(row_at(row + 3u) + 9u * i, q, a, b));
  }
  return s;
}

fn run(group: u32, lane: u32) { sum_row(group, lane); }
