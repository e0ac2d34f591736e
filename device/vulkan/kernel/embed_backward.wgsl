//apr:kernel grad:rw ids:r:i32 dx:r faults:rw:u32 | rows:u32 cols:u32 lo:u32 hi:u32 limit:u32
//apr:include faults

// grad[ids[i]−lo] += dx[i] for ids in [lo, hi), in ascending i. A lane has a column, so that nothing is added by two.
fn run(group: u32, lane: u32) {
  let c = group * 64u + lane;
  if (c >= args.cols) { return; }
  for (var i = 0u; i < args.rows; i++) {
    let id = ids[args.ids_at + i];
    if (id < 0 || u32(id) >= args.limit) {
      note(1u, id);
    } else if (u32(id) >= args.lo && u32(id) < args.hi) {
      let at = args.grad_at + (u32(id) - args.lo) * args.grad_row + c;
      grad[at] = grad[at] + dx[args.dx_at + i * args.dx_row + c];
    }
  }
}
