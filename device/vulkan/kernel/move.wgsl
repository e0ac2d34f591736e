//apr:kernel dst:rw:u32 src:r:u32 | rows:u32 cols:u32 to:u32 from:u32 width:u32 skip_dst:u32 skip_src:u32

// Copies rows of 32-bit elements. With width > 0 groups of width columns stand skip columns apart: column c of the copied
// rows is column c/width·skip + c%width + to (or from) of the tensor.

fn place(c: u32, skip: u32, first: u32) -> u32 {
  if (args.width == 0u) { return c + first; }
  return c / args.width * skip + c % args.width + first;
}

fn run(group: u32, lane: u32) {
  let chunks = (args.cols + 511u) / 512u;
  let r = group / chunks;
  let c0 = group % chunks * 512u;
  for (var c = c0 + lane; c < min(c0 + 512u, args.cols); c += 64u) {
    dst[args.dst_at + r * args.dst_row + place(c, args.skip_dst, args.to)] = src[args.src_at + r * args.src_row + place(c, args.skip_src, args.from)];
  }
}
