//apr:kernel y:rw x:r:vec4<f32> w:r:vec4<u32> bias:r | n:u32 columns:u32 add:u32 biased:u32
//apr:include row half

// y = w·x + bias, or added to y, of one row of x; w in Q4_K (see weight_q4_k). A lane has 16 bytes of a block: the low
// nibbles are 16 columns of a group of 32, the high ones the same of the group behind it. Of each it sums Σqx and has Σx of
// all rows, so that the scale and the minimum are multiplied once.

struct Columns { l0: vec4<f32>, l1: vec4<f32>, l2: vec4<f32>, l3: vec4<f32>, h0: vec4<f32>, h1: vec4<f32>, h2: vec4<f32>, h3: vec4<f32>, low: f32, high: f32 }

fn nibbles(v: u32) -> vec4<f32> {
  return small((vec4<u32>(v) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(15u));
}

fn piece(block: u32, q: u32, c: Columns) -> f32 {
  let head = w[block];
  let v = w[block + 1u + q];
  let shift = 16u * (q / 2u % 2u);
  let s = head.y >> shift;
  let m = head.z >> shift;
  let t = head.w >> shift;
  var scale = vec2<u32>(s & 63u, (s >> 8u) & 63u);
  var least = vec2<u32>(m & 63u, (m >> 8u) & 63u);
  if (q >= 4u) {
    scale = vec2<u32>((t & 15u) | ((s >> 2u) & 48u), ((t >> 8u) & 15u) | ((s >> 10u) & 48u));
    least = vec2<u32>(((t >> 4u) & 15u) | ((m >> 2u) & 48u), ((t >> 12u) & 15u) | ((m >> 10u) & 48u));
  }
  let low = fma(nibbles(v.w), c.l3, fma(nibbles(v.z), c.l2, fma(nibbles(v.y), c.l1, nibbles(v.x) * c.l0)));
  let up = v >> vec4<u32>(4u);
  let high = fma(nibbles(up.w), c.h3, fma(nibbles(up.z), c.h2, fma(nibbles(up.y), c.h1, nibbles(up.x) * c.h0)));
  let f = half(head.x & 0xffffu) * vec2<f32>(scale);
  let g = half(head.x >> 16u) * vec2<f32>(least);
  return fma(f.x, added(low), f.y * added(high)) - fma(g.x, c.low, g.y * c.high);
}

fn row_sums(row: u32, lane: u32) -> vec4<f32> {
  let q = lane % 8u;
  var s = vec4<f32>();
  for (var i = lane / 8u; i < args.columns / 256u; i += 4u) {
    let at = args.x_at / 4u + 64u * i + q / 2u * 16u + q % 2u * 4u;
    var c = Columns(x[at], x[at + 1u], x[at + 2u], x[at + 3u], x[at + 8u], x[at + 9u], x[at + 10u], x[at + 11u], 0.0, 0.0);
    c.low = added((c.l0 + c.l1) + (c.l2 + c.l3));
    c.high = added((c.h0 + c.h1) + (c.h2 + c.h3));
    s += vec4<f32>(piece(row_at(row) / 4u + 9u * i, q, c), piece(row_at(row + 1u) / 4u + 9u * i, q, c),
      piece(row_at(row + 2u) / 4u + 9u * i, q, c), piece(row_at(row + 3u) / 4u + 9u * i, q, c));
  }
  return s;
}

fn run(group: u32, lane: u32) { sum_row(group, lane); }
