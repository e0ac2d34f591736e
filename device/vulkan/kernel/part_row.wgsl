// A product with one row of x: a group has 8 rows of w, half of its lanes four of them, over which they share what they read
// of x. Each lane takes every 32nd piece of a row; the sums of lanes are added as a tree. span, of each form, is how many
// columns a piece has, and piece(row, col, lane) returns a lane's sum of a piece from column col on of each of four rows.

var<workgroup> sums: array<vec4<f32>, 64>;

// The float32 of a whole number below 2²³, by bits.
fn small(v: vec4<u32>) -> vec4<f32> { return bitcast<vec4<f32>>(v | vec4<u32>(0x4b000000u)) - 8388608.0; }

// The place of row i, or of the last one.
fn row_at(i: u32) -> u32 { return args.w_at + min(i, args.n - 1u) * args.w_row; }

fn added(v: vec4<f32>) -> f32 { return (v.x + v.y) + (v.z + v.w); }

fn store(row: u32, sum: f32) {
  if (row >= args.n) { return; }
  var v = sum;
  if (args.biased != 0u) { v += bias[args.bias_at + row]; }
  if (args.add != 0u) { v += y[args.y_at + row]; }
  y[args.y_at + row] = v;
}

fn sum_row(group: u32, lane: u32) {
  let row = group * 8u + lane / 32u * 4u;
  sums[lane] = row_sums(row, lane % 32u);
  workgroupBarrier();
  for (var half = 16u; half > 0u; half = half / 2u) {
    if (lane % 32u < half) { sums[lane] += sums[lane + half]; }
    workgroupBarrier();
  }
  if (lane % 32u < 4u) { store(row + lane % 32u, sums[lane / 32u * 32u][lane % 32u]); }
}
