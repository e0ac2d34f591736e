//apr:kernel y:rw x:r:vec4<f32> w:r:vec4<f32> bias:r | n:u32 columns:u32 team:u32 add:u32 biased:u32
//apr:lanes 128
//apr:include row

const ABREAST: u32 = 1u;

// y = w·x + bias, or added to y, of one row of x; w in float32, columns a multiple of 4. A piece is 4 columns, and a lane has two
// at a time, of which the second one may count nothing.

fn row_sums(row: u32, member: u32) -> vec4<f32> {
  let rows = rows_at(row);
  let pieces = args.columns / 4u;
  var a = vec4<f32>();
  var b = vec4<f32>();
  var c = vec4<f32>();
  var d = vec4<f32>();
  for (var i = member; i < pieces; i += 2u * args.team) {
    let j = min(i + args.team, pieces - 1u);
    let a0 = w[rows.x + i];
    let b0 = w[rows.y + i];
    let c0 = w[rows.z + i];
    let d0 = w[rows.w + i];
    let a1 = w[rows.x + j];
    let b1 = w[rows.y + j];
    let c1 = w[rows.z + j];
    let d1 = w[rows.w + j];
    let u = x[args.x_at / 4u + i];
    let v = x[args.x_at / 4u + j] * select(0.0, 1.0, i + args.team < pieces);
    a = fma(a1, v, fma(a0, u, a));
    b = fma(b1, v, fma(b0, u, b));
    c = fma(c1, v, fma(c0, u, c));
    d = fma(d1, v, fma(d0, u, d));
  }
  return vec4<f32>(added(a), added(b), added(c), added(d));
}

fn run(group: u32, lane: u32) { sum_row(group, lane); }
