//apr:kernel dst:rw:u32 | rows:u32 cols:u32 value:u32

// Sets rows of 32-bit elements to a value.
fn run(group: u32, lane: u32) {
  let chunks = (args.cols + 511u) / 512u;
  let r = group / chunks;
  let c0 = group % chunks * 512u;
  for (var c = c0 + lane; c < min(c0 + 512u, args.cols); c += 64u) { dst[args.dst_at + r * args.dst_row + c] = args.value; }
}
