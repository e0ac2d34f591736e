//apr:kernel y:rw x:r:vec4<f32> w:r:vec4<u32> bias:r | n:u32 columns:u32 team:u32 add:u32 biased:u32 lift:u32
//apr:lanes 128
//apr:include row codes

const ABREAST: u32 = 4u;

// y = w·x + bias, or added to y, of one row of x; w in Q6_K (see weight_q6_k). A piece is 16 columns in each quarter of a half
// block: 32 bytes of low nibbles and 16 of upper bits, with four scales.

struct Quarters { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32> }

// Four columns of each quarter: words of each row, near and far of low nibbles, high of upper bits.
fn codes(near: vec4<u32>, far: vec4<u32>, high: vec4<u32>, at: u32, s: Quarters) -> Quarters {
  let low = vec4<u32>(0x0f0f0f0fu);
  let top = vec4<u32>(0x30303030u);
  let two = vec4<u32>(2u);
  let four = vec4<u32>(4u);
  return Quarters(
    bytes((near & low) | ((high << four) & top), 32.0, for_bytes(x[at]), s.a),
    bytes((far & low) | ((high << two) & top), 32.0, for_bytes(x[at + 8u]), s.b),
    bytes(((near >> four) & low) | (high & top), 32.0, for_bytes(x[at + 16u]), s.c),
    bytes(((far >> four) & low) | ((high >> two) & top), 32.0, for_bytes(x[at + 24u]), s.d));
}

// The signed byte n of words.
fn scale(v: vec4<u32>, n: u32) -> vec4<f32> {
  return lifted(((v >> vec4<u32>(8u * n)) & vec4<u32>(0xffu)) ^ vec4<u32>(0x80u)) - 8388736.0;
}

fn row_sums(row: u32, member: u32) -> vec4<f32> {
  let rows = rows_at(row);
  let halves_long = args.w_row / 4u - args.w_row * 2u / 105u * 13u; // vectors before the blocks
  var s = vec4<f32>();
  for (var i = member; i < args.columns / 64u; i += args.team) {
    let block = i / 4u;
    let h = i % 4u / 2u;
    let p = i % 2u;
    let first = rows + halves_long + 13u * block;
    let near = first + 4u * h + p;
    let high = first + 8u + 2u * h + p;
    let na = w[near.x];
    let nb = w[near.y];
    let nc = w[near.z];
    let nd = w[near.w];
    let fa = w[near.x + 2u];
    let fb = w[near.y + 2u];
    let fc = w[near.z + 2u];
    let fd = w[near.w + 2u];
    let ga = w[high.x];
    let gb = w[high.y];
    let gc = w[high.z];
    let gd = w[high.w];
    let sa = w[first.x + 12u];
    let sb = w[first.y + 12u];
    let sc = w[first.z + 12u];
    let sd = w[first.w + 12u];
    let d = rows + block / 8u;
    let n = block / 2u % 4u;
    let ds = vec4<u32>(w[d.x][n], w[d.y][n], w[d.z][n], w[d.w][n]) >> vec4<u32>(16u * (block % 2u));
    let at = args.x_at / 4u + 64u * block + 32u * h + 4u * p;
    let q0 = codes(vec4<u32>(na.x, nb.x, nc.x, nd.x), vec4<u32>(fa.x, fb.x, fc.x, fd.x), vec4<u32>(ga.x, gb.x, gc.x, gd.x), at, Quarters());
    let q1 = codes(vec4<u32>(na.y, nb.y, nc.y, nd.y), vec4<u32>(fa.y, fb.y, fc.y, fd.y), vec4<u32>(ga.y, gb.y, gc.y, gd.y), at + 1u, q0);
    let q2 = codes(vec4<u32>(na.z, nb.z, nc.z, nd.z), vec4<u32>(fa.z, fb.z, fc.z, fd.z), vec4<u32>(ga.z, gb.z, gc.z, gd.z), at + 2u, q1);
    let q = codes(vec4<u32>(na.w, nb.w, nc.w, nd.w), vec4<u32>(fa.w, fb.w, fc.w, fd.w), vec4<u32>(ga.w, gb.w, gc.w, gd.w), at + 3u, q2);
    let lower = select(vec4<u32>(sa.x, sb.x, sc.x, sd.x), vec4<u32>(sa.z, sb.z, sc.z, sd.z), h == 1u);
    let upper = select(vec4<u32>(sa.y, sb.y, sc.y, sd.y), vec4<u32>(sa.w, sb.w, sc.w, sd.w), h == 1u);
    s = fma(halves(ds), fma(q.a, scale(lower, p), q.b * scale(lower, 2u + p)) + fma(q.c, scale(upper, p), q.d * scale(upper, 2u + p)), s);
  }
  return s;
}

fn run(group: u32, lane: u32) { sum_row(group, lane); }
