//apr:kernel dsinks:rw lse:r delta:r sinks:r | rows:u32
//apr:include exp reduce

// dsinks[h] −= Σ_rows e^(sink−lse)·delta. A group has a head.
fn run(group: u32, lane: u32) {
  let sink = sinks[args.sinks_at + group];
  var s = 0.0;
  for (var r = lane; r < args.rows; r += 64u) {
    s += exp_(sink - lse[args.lse_at + r * args.lse_row + group]) * delta[args.delta_at + r * args.delta_row + group];
  }
  let sum = total(lane, s);
  if (lane == 0u) { dsinks[args.dsinks_at + group] = dsinks[args.dsinks_at + group] - sum; }
}
