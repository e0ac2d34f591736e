//apr:kernel y:rw x:r w:r:u32 bias:r | m:u32 n:u32 columns:u32 add:u32 biased:u32
//apr:variants f32 bf16 f16 q8_0 q4_k q6_k
//apr:include weight_$variant

// y = x·Wᵀ + bias, or added to y, of up to 8 rows of x. A group has 8 rows of w, 8 lanes one of them: each takes every eighth
// piece of 16 columns, and the sums of lanes are added in ascending order.

var<workgroup> sums: array<f32, 512>; // [row of x, lane]

fn run(group: u32, lane: u32) {
  let row = group * 8u + lane / 8u;
  for (var i = 0u; i < args.m; i++) { sums[64u * i + lane] = 0.0; }
  if (row < args.n) {
    for (var col = lane % 8u * 16u; col < args.columns; col += 128u) {
      let r = values(row, col);
      for (var i = 0u; i < args.m; i++) {
        let at = args.x_at + i * args.x_row + col;
        var s = 0.0;
        for (var j = 0u; j < min(16u, args.columns - col); j++) { s = fma(value(r, j), x[at + j], s); }
        sums[64u * i + lane] += s;
      }
    }
  }
  workgroupBarrier();
  let i = lane / 8u;
  let out = group * 8u + lane % 8u;
  if (i < args.m && out < args.n) {
    let from = 64u * i + lane % 8u * 8u;
    var v = 0.0;
    for (var j = 0u; j < 8u; j++) { v += sums[from + j]; }
    if (args.biased != 0u) { v += bias[args.bias_at + out]; }
    let at = args.y_at + i * args.y_row + out;
    if (args.add != 0u) { v += y[at]; }
    y[at] = v;
  }
}
