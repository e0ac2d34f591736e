//apr:kernel y:rw x:r:vec4<f32> w:r:vec4<u32> bias:r | n:u32 columns:u32 add:u32 biased:u32
//apr:include row

// y = w·x + bias, or added to y, of one row of x; w in bfloat16, columns a multiple of 8.

fn piece(v: vec4<u32>, even: vec4<f32>, odd: vec4<f32>, s: vec4<f32>) -> vec4<f32> {
  return fma(bitcast<vec4<f32>>(v & vec4<u32>(0xffff0000u)), odd, fma(bitcast<vec4<f32>>(v << vec4<u32>(16u)), even, s));
}

fn row_sums(row: u32, lane: u32) -> vec4<f32> {
  var a = vec4<f32>();
  var b = vec4<f32>();
  var c = vec4<f32>();
  var d = vec4<f32>();
  for (var i = lane; i < args.columns / 8u; i += 32u) {
    let l = x[args.x_at / 4u + 2u * i];
    let h = x[args.x_at / 4u + 2u * i + 1u];
    let even = vec4<f32>(l.x, l.z, h.x, h.z);
    let odd = vec4<f32>(l.y, l.w, h.y, h.w);
    a = piece(w[row_at(row) / 4u + i], even, odd, a);
    b = piece(w[row_at(row + 1u) / 4u + i], even, odd, b);
    c = piece(w[row_at(row + 2u) / 4u + i], even, odd, c);
    d = piece(w[row_at(row + 3u) / 4u + i], even, odd, d);
  }
  return vec4<f32>(added(a), added(b), added(c), added(d));
}

fn run(group: u32, lane: u32) { sum_row(group, lane); }
