// A small ext4 in a file, on a loop device, that a test can freeze: calls that write then sleep in the kernel, beyond
// the reach of SIGKILL, until it is thawed. The mount is in a namespace of this process and its children.
#ifndef CKPTD_TESTS_INTEGRATION_LOOP_DISK_H_
#define CKPTD_TESTS_INTEGRATION_LOOP_DISK_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace ckptd::harness {

class LoopDisk {
 public:
  explicit LoopDisk(uint64_t megabytes);
  ~LoopDisk();  // thawed and gone
  LoopDisk(const LoopDisk&) = delete;
  LoopDisk& operator=(const LoopDisk&) = delete;

  [[nodiscard]] bool mounted() const { return guard_ > 0; }
  [[nodiscard]] const std::string& skipped() const { return skipped_; }  // why it is not mounted
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const std::string& image() const { return image_; }  // what it keeps its blocks in
  void Freeze() const;
  void Thaw() const;

 private:
  std::string image_;
  std::string path_;
  std::string skipped_;
  pid_t guard_ = 0;  // thaws when this process is killed: a frozen file system would outlive it
  int guard_pipe_ = -1;
};

}  // namespace ckptd::harness

#endif  // CKPTD_TESTS_INTEGRATION_LOOP_DISK_H_
