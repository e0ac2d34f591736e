//apr:kernel dst:rw src:r ids:r:i32 faults:rw:u32 | rows:u32 cols:u32 lo:u32 hi:u32 limit:u32 scatter:u32
//apr:include faults

// dst[i] = src[ids[i]−lo], or with scatter dst[ids[i]−lo] = src[i], for ids in [lo, hi).
fn run(group: u32, lane: u32) {
  let chunks = (args.cols + 511u) / 512u;
  let i = group / chunks;
  let c0 = group % chunks * 512u;
  let id = ids[args.ids_at + i];
  if (id < 0 || u32(id) >= args.limit) { note(2u, id); return; }
  if (u32(id) < args.lo || u32(id) >= args.hi) { return; }
  var to = i;
  var from = u32(id) - args.lo;
  if (args.scatter != 0u) {
    to = from;
    from = i;
  }
  for (var c = c0 + lane; c < min(c0 + 512u, args.cols); c += 64u) {
    dst[args.dst_at + to * args.dst_row + c] = src[args.src_at + from * args.src_row + c];
  }
}
