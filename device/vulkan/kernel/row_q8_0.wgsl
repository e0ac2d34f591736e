//apr:kernel y:rw x:r:vec4<f32> w:r:vec4<u32> bias:r | n:u32 columns:u32 team:u32 add:u32 biased:u32 lift:u32
//apr:lanes 128
//apr:include row codes

const ABREAST: u32 = 4u;

// y = w·x + bias, or added to y, of one row of x; w in Q8_0 (see weight_q8_0). A piece is a block.

// 16 columns: four words of each row a, b, c, d.
fn codes(a: vec4<u32>, b: vec4<u32>, c: vec4<u32>, d: vec4<u32>, at: u32, s: vec4<f32>) -> vec4<f32> {
  let signs = vec4<u32>(0x80808080u);
  let s0 = bytes(vec4<u32>(a.x, b.x, c.x, d.x) ^ signs, 128.0, for_bytes(x[at]), s);
  let s1 = bytes(vec4<u32>(a.y, b.y, c.y, d.y) ^ signs, 128.0, for_bytes(x[at + 1u]), s0);
  let s2 = bytes(vec4<u32>(a.z, b.z, c.z, d.z) ^ signs, 128.0, for_bytes(x[at + 2u]), s1);
  return bytes(vec4<u32>(a.w, b.w, c.w, d.w) ^ signs, 128.0, for_bytes(x[at + 3u]), s2);
}

fn row_sums(row: u32, member: u32) -> vec4<f32> {
  let rows = rows_at(row);
  let halves_long = args.w_row / 4u - args.w_row * 2u / 17u * 2u; // vectors before the blocks
  var s = vec4<f32>();
  for (var i = member; i < args.columns / 32u; i += args.team) {
    let first = rows + halves_long + 2u * i;
    let a0 = w[first.x];
    let b0 = w[first.y];
    let c0 = w[first.z];
    let d0 = w[first.w];
    let a1 = w[first.x + 1u];
    let b1 = w[first.y + 1u];
    let c1 = w[first.z + 1u];
    let d1 = w[first.w + 1u];
    let d = rows + i / 8u;
    let n = i / 2u % 4u;
    let ds = vec4<u32>(w[d.x][n], w[d.y][n], w[d.z][n], w[d.w][n]) >> vec4<u32>(16u * (i % 2u));
    let at = args.x_at / 4u + 8u * i;
    s = fma(halves(ds), codes(a1, b1, c1, d1, at + 4u, codes(a0, b0, c0, d0, at, vec4<f32>())), s);
  }
  return s;
}

fn run(group: u32, lane: u32) { sum_row(group, lane); }
