// How far long work is: a bar on a terminal, a line now and then elsewhere. On standard error, so that output can be
// piped.
#ifndef CKPTD_TOOLS_CKPTCTL_PROGRESS_H_
#define CKPTD_TOOLS_CKPTCTL_PROGRESS_H_

#include <cstdint>
#include <string>

#include "daemon/base/clock.h"

namespace ckptd {

class Progress {
 public:
  // `quiet`: say nothing, for `-o json`.
  Progress(std::string what, bool quiet);
  ~Progress();  // ends the line

  void Update(uint64_t done, uint64_t total);

 private:
  const std::string what_;
  const bool quiet_;
  const bool terminal_;
  const Nanos started_;
  Nanos shown_{0};
  bool line_open_ = false;
};

// One line: "verify  [#####-----]  50 %  1.0 GiB of 2.0 GiB  512.0 MiB/s". Pure.
[[nodiscard]] std::string ProgressLine(const std::string& what, uint64_t done, uint64_t total, Nanos elapsed);

}  // namespace ckptd

#endif  // CKPTD_TOOLS_CKPTCTL_PROGRESS_H_
