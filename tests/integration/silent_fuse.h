// A FUSE file system of one file whose server opens it and then never answers: whoever reads it, or closes it with
// close(), sleeps in the kernel until the server ends; so does whoever opens its root.
#ifndef CKPTD_TESTS_INTEGRATION_SILENT_FUSE_H_
#define CKPTD_TESTS_INTEGRATION_SILENT_FUSE_H_

#include <sys/types.h>

#include <string>

namespace ckptd::harness {

class SilentFuse {
 public:
  SilentFuse();
  ~SilentFuse();  // End(), then unmounts
  SilentFuse(const SilentFuse&) = delete;
  SilentFuse& operator=(const SilentFuse&) = delete;

  [[nodiscard]] const std::string& skipped() const { return skipped_; }  // why it is not mounted
  // Of the file, for reading and writing. Close it after End().
  [[nodiscard]] int Open() const;
  // Its file stands in place of that file, or its root of that directory, until it is unmounted.
  [[nodiscard]] bool Cover(const std::string& path);
  // The server ends, and whoever sleeps wakes.
  void End();

 private:
  std::string path_;
  std::string skipped_;
  std::string covered_;
  pid_t server_ = -1;
  bool mounted_ = false;
};

}  // namespace ckptd::harness

#endif  // CKPTD_TESTS_INTEGRATION_SILENT_FUSE_H_
