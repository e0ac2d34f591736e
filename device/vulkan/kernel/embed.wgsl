//apr:kernel dst:rw w:r:u32 ids:r:i32 faults:rw:u32 | rows:u32 columns:u32 lo:u32 hi:u32 limit:u32
//apr:variants f32 bf16 f16 q8_0 q4_k q6_k
//apr:include faults weight_$variant

// dst[i] = w[ids[i]−lo] for ids in [lo, hi), the rows of w that are bound; others stay as they are. A lane has 16 columns.
fn run(group: u32, lane: u32) {
  let chunks = (args.columns + 1023u) / 1024u;
  let i = group / chunks;
  let col = group % chunks * 1024u + lane * 16u;
  let id = ids[args.ids_at + i];
  if (id < 0 || u32(id) >= args.limit) { note(1u, id); return; }
  if (u32(id) < args.lo || u32(id) >= args.hi || col >= args.columns) { return; }
  let r = values(u32(id) - args.lo, col);
  for (var j = 0u; j < min(16u, args.columns - col); j++) { dst[args.dst_at + i * args.dst_row + col + j] = value(r, j); }
}
