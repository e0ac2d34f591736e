// Notes an id outside [0, limit), for the host to find when it waits. Any one of several is as good as another.
fn note(code: u32, value: i32) {
  faults[0] = code;
  faults[1] = u32(value);
  faults[2] = args.limit;
}
