// What attention and its backward have in common: which keys a query sees, and the score of a query and a key.

// The lowest key that the query in a row sees, whose own key is given.
fn lowest(row: u32, own: u32) -> u32 {
  var low = 0u;
  if (args.window > 0u && own + 1u > args.window) { low = own + 1u - args.window; }
  if (args.documents != 0u) { low = max(low, min(u32(max(first[args.first_at + row], 0)), own)); }
  return low;
}

fn capped(s: f32) -> f32 {
  if (args.cap > 0.0) { return args.cap * tanh_(s / args.cap); }
  return s;
}

// The slope of capped where its result is t.
fn slope(t: f32) -> f32 {
  if (args.cap > 0.0) { return (1.0 - t / args.cap) * (1.0 + t / args.cap); }
  return 1.0;
}
