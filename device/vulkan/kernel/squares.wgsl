//apr:kernel sums:rw x:r | n:u32
//apr:include bits reduce

// Of 8192 elements of x: the sum of squares of large ones (times 2⁻¹²⁰), of ordinary and of small ones (times 2¹²⁰), and how many are
// not finite. The host adds them in float64, where no square overflows or vanishes.
fn run(group: u32, lane: u32) {
  var large = 0.0;
  var plain = 0.0;
  var small = 0.0;
  var bad = 0.0;
  for (var i = group * 8192u + lane; i < min(group * 8192u + 8192u, args.n); i += 64u) {
    let v = x[args.x_at + i];
    let a = abs(v);
    if (!finite(v)) {
      bad += 1.0;
    } else if (a > 1.0737418e9) {
      large += (v * 8.6736174e-19) * (v * 8.6736174e-19);
    } else if (a < 1.8189894e-12) {
      small += (v * 1.152921504606847e18) * (v * 1.152921504606847e18);
    } else {
      plain += v * v;
    }
  }
  let l = total(lane, large);
  let p = total(lane, plain);
  let s = total(lane, small);
  let b = total(lane, bad);
  if (lane == 0u) {
    let at = args.sums_at + group * args.sums_row;
    sums[at] = l;
    sums[at + 1u] = p;
    sums[at + 2u] = s;
    sums[at + 3u] = b;
  }
}
