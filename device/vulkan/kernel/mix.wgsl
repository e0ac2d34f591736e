//apr:kernel y:rw t:r | n:u32 w:f32 temperature:f32 add:u32
//apr:include exp reduce

// y = T·ln(w·softmax(t/T)), or with add y = T·ln(e^(y/T) + w·softmax(t/T)). A group has a row.
fn run(group: u32, lane: u32) {
  let ts = args.t_at + group * args.t_row;
  let ys = args.y_at + group * args.y_row;
  var most = -3.0e38;
  for (var c = lane; c < args.n; c += 64u) { most = max(most, t[ts + c]); }
  let top = largest(lane, most);
  var sum = 0.0;
  for (var c = lane; c < args.n; c += 64u) { sum += exp_((t[ts + c] - top) / args.temperature); }
  let shift = args.temperature * (log_(args.w) - log_(total(lane, sum)));
  for (var c = lane; c < args.n; c += 64u) {
    let v = (t[ts + c] - top) + shift;
    if (args.add == 0u) {
      y[ys + c] = v;
    } else {
      let a = y[ys + c];
      let most_of = max(a, v);
      let gap = (min(a, v) - max(most_of, -3.4e38)) / args.temperature;
      y[ys + c] = most_of + args.temperature * log1p_(exp_(gap));
    }
  }
}

// ln(1+e) of 0 ≤ e ≤ 1.
fn log1p_(e: f32) -> f32 {
  let u = 1.0 + e;
  if (u == 1.0) { return e; }
  return log_(u) * (e / (u - 1.0));
}
