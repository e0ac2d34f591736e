//apr:kernel y:rw x:r:vec4<f32> w:r:vec4<f32> bias:r | n:u32 columns:u32 add:u32 biased:u32
//apr:include row

// y = w·x + bias, or added to y, of one row of x; w in float32, columns a multiple of 4.

fn row_sums(row: u32, lane: u32) -> vec4<f32> {
  var a = vec4<f32>();
  var b = vec4<f32>();
  var c = vec4<f32>();
  var d = vec4<f32>();
  for (var i = lane; i < args.columns / 4u; i += 32u) {
    let v = x[args.x_at / 4u + i];
    a = fma(w[row_at(row) / 4u + i], v, a);
    b = fma(w[row_at(row + 1u) / 4u + i], v, b);
    c = fma(w[row_at(row + 2u) / 4u + i], v, c);
    d = fma(w[row_at(row + 3u) / 4u + i], v, d);
  }
  return vec4<f32>(added(a), added(b), added(c), added(d));
}

fn run(group: u32, lane: u32) { sum_row(group, lane); }
