//apr:kernel y:rw x:r:vec4<f32> w:r:u32 bias:r | n:u32 columns:u32 add:u32 biased:u32
//apr:include row half

// y = w·x + bias, or added to y, of one row of x; w in Q6_K (see weight_q6_k). A lane has four columns in each quarter of a half
// block: two words of low nibbles and one of upper bits.

struct Columns { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32> }

fn codes(low: u32, high: u32) -> vec4<f32> {
  let at = vec4<u32>(0u, 8u, 16u, 24u);
  return small(((vec4<u32>(low) >> at) & vec4<u32>(15u)) | (((vec4<u32>(high) >> at) & vec4<u32>(3u)) << vec4<u32>(4u))) - 32.0;
}

fn scale(words: u32, n: u32) -> f32 { return f32(i32(words << (24u - 8u * n)) >> 24u); }

fn piece(block: u32, h: u32, p: u32, c: Columns) -> f32 {
  let near = w[block + 16u * h + p];
  let far = w[block + 16u * h + 8u + p];
  let high = w[block + 32u + 8u * h + p];
  let first = w[block + 48u + 2u * h];
  let second = w[block + 49u + 2u * h];
  let n = p / 4u;
  let s = (added(codes(near, high) * c.a) * scale(first, n) + added(codes(far, high >> 2u) * c.b) * scale(first, 2u + n)) +
    (added(codes(near >> 4u, high >> 4u) * c.c) * scale(second, n) + added(codes(far >> 4u, high >> 6u) * c.d) * scale(second, 2u + n));
  return half(w[block + 52u] & 0xffffu) * s;
}

fn row_sums(row: u32, lane: u32) -> vec4<f32> {
  let h = lane % 16u / 8u;
  let p = lane % 8u;
  var s = vec4<f32>();
  for (var i = lane / 16u; i < args.columns / 256u; i += 2u) {
    let at = args.x_at / 4u + 64u * i + 32u * h + p;
    let c = Columns(x[at], x[at + 8u], x[at + 16u], x[at + 24u]);
    s += vec4<f32>(piece(row_at(row) + 53u * i, h, p, c), piece(row_at(row + 1u) + 53u * i, h, p, c),
      piece(row_at(row + 2u) + 53u * i, h, p, c), piece(row_at(row + 3u) + 53u * i, h, p, c));
  }
  return s;
}

fn run(group: u32, lane: u32) { sum_row(group, lane); }
