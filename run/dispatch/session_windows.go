package dispatch

import "syscall"

// ownSession is nil: a dispatched run is supervised, which Windows cannot do.
var ownSession *syscall.SysProcAttr
