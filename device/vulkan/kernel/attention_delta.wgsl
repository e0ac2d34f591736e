//apr:kernel delta:rw do_:r o:r | heads:u32 dim:u32
//apr:include reduce

// delta[row, head] = Σ do∘o. A group has a row and head.
fn run(group: u32, lane: u32) {
  let row = group / args.heads;
  let head = group % args.heads;
  var s = 0.0;
  for (var c = lane; c < args.dim; c += 64u) {
    s += do_[args.do__at + row * args.do__row + head * args.dim + c] * o[args.o_at + row * args.o_row + head * args.dim + c];
  }
  let sum = total(lane, s);
  if (lane == 0u) { delta[args.delta_at + row * args.delta_row + head] = sum; }
}
