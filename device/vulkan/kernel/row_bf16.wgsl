//apr:kernel y:rw x:r:vec4<f32> w:r:vec4<u32> bias:r | n:u32 columns:u32 team:u32 add:u32 biased:u32
//apr:lanes 128
//apr:include row

const ABREAST: u32 = 1u;

// y = w·x + bias, or added to y, of one row of x; w in bfloat16, columns a multiple of 8. A piece is 8 columns, and a lane has two
// at a time, of which the second one may count nothing.

fn piece(v: vec4<u32>, even: vec4<f32>, odd: vec4<f32>, s: vec4<f32>) -> vec4<f32> {
  return fma(bitcast<vec4<f32>>(v & vec4<u32>(0xffff0000u)), odd, fma(bitcast<vec4<f32>>(v << vec4<u32>(16u)), even, s));
}

fn row_sums(row: u32, member: u32) -> vec4<f32> {
  let rows = rows_at(row);
  let pieces = args.columns / 8u;
  var a = vec4<f32>();
  var b = vec4<f32>();
  var c = vec4<f32>();
  var d = vec4<f32>();
  for (var i = member; i < pieces; i += 2u * args.team) {
    let j = min(i + args.team, pieces - 1u);
    let counts = select(0.0, 1.0, i + args.team < pieces);
    let a0 = w[rows.x + i];
    let b0 = w[rows.y + i];
    let c0 = w[rows.z + i];
    let d0 = w[rows.w + i];
    let a1 = w[rows.x + j];
    let b1 = w[rows.y + j];
    let c1 = w[rows.z + j];
    let d1 = w[rows.w + j];
    let l0 = x[args.x_at / 4u + 2u * i];
    let h0 = x[args.x_at / 4u + 2u * i + 1u];
    let l1 = x[args.x_at / 4u + 2u * j] * counts;
    let h1 = x[args.x_at / 4u + 2u * j + 1u] * counts;
    let even0 = vec4<f32>(l0.x, l0.z, h0.x, h0.z);
    let odd0 = vec4<f32>(l0.y, l0.w, h0.y, h0.w);
    let even1 = vec4<f32>(l1.x, l1.z, h1.x, h1.z);
    let odd1 = vec4<f32>(l1.y, l1.w, h1.y, h1.w);
    a = piece(a1, even1, odd1, piece(a0, even0, odd0, a));
    b = piece(b1, even1, odd1, piece(b0, even0, odd0, b));
    c = piece(c1, even1, odd1, piece(c0, even0, odd0, c));
    d = piece(d1, even1, odd1, piece(d0, even0, odd0, d));
  }
  return vec4<f32>(added(a), added(b), added(c), added(d));
}

fn run(group: u32, lane: u32) { sum_row(group, lane); }
