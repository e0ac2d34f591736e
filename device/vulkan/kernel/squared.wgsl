//apr:kernel grad:rw sums:rw u:r t:r | n:u32 f:f32
//apr:include reduce

// sums[row] = Σ (u−t)² and grad = f·(u−t). A group has a row; grad may be u.
fn run(group: u32, lane: u32) {
  var s = 0.0;
  for (var c = lane; c < args.n; c += 64u) {
    let d = u[args.u_at + group * args.u_row + c] - t[args.t_at + group * args.t_row + c];
    s += d * d;
    grad[args.grad_at + group * args.grad_row + c] = args.f * d;
  }
  let sum = total(lane, s);
  if (lane == 0u) { sums[args.sums_at + group * args.sums_row] = sum; }
}
