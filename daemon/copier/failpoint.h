// Named points where a test stops a copier, to act on it, on its agent or on its trainer at just that step:
//
//   CKPTD_COPIER_FP("copy.ready");
//
// FAKECUDA_POINTS names a folder. A copier that comes to a point whose name a file there has removes the file and stops
// itself (SIGSTOP): of all processes one, once. The variable begins as those do that an agent hands to its copiers.
// Compiled in where CKPTD_FAILPOINTS is set; a release build holds none.
#ifndef CKPTD_DAEMON_COPIER_FAILPOINT_H_
#define CKPTD_DAEMON_COPIER_FAILPOINT_H_

#ifdef CKPTD_FAILPOINTS
#define CKPTD_COPIER_FP(name) ::ckptd::HitCopierPoint(name)
#else
#define CKPTD_COPIER_FP(name) ((void)0)
#endif

namespace ckptd {

void HitCopierPoint(const char* name);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_COPIER_FAILPOINT_H_
