// Sums and maxima over the 64 lanes of a group, in a fixed order.

var<workgroup> lanes: array<f32, 64>;

fn total(lane: u32, v: f32) -> f32 {
  lanes[lane] = v;
  workgroupBarrier();
  if (lane < 16u) { lanes[lane] = (lanes[lane] + lanes[lane + 16u]) + (lanes[lane + 32u] + lanes[lane + 48u]); }
  workgroupBarrier();
  if (lane < 4u) { lanes[lane] = (lanes[lane] + lanes[lane + 4u]) + (lanes[lane + 8u] + lanes[lane + 12u]); }
  workgroupBarrier();
  let sum = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
  workgroupBarrier();
  return sum;
}

fn largest(lane: u32, v: f32) -> f32 {
  lanes[lane] = v;
  workgroupBarrier();
  if (lane < 16u) { lanes[lane] = max(max(lanes[lane], lanes[lane + 16u]), max(lanes[lane + 32u], lanes[lane + 48u])); }
  workgroupBarrier();
  if (lane < 4u) { lanes[lane] = max(max(lanes[lane], lanes[lane + 4u]), max(lanes[lane + 8u], lanes[lane + 12u])); }
  workgroupBarrier();
  let top = max(max(lanes[0], lanes[1]), max(lanes[2], lanes[3]));
  workgroupBarrier();
  return top;
}
