// A directory for one test, gone with it.
#ifndef CKPTD_DAEMON_OS_TESTING_TEMP_DIR_H_
#define CKPTD_DAEMON_OS_TESTING_TEMP_DIR_H_

#include <cstdlib>
#include <filesystem>
#include <string>

namespace ckptd {

class TempDir {
 public:
  // In $TMPDIR, else /tmp; or in `parent`, such as "/dev/shm".
  explicit TempDir(const std::string& parent = std::filesystem::temp_directory_path())
      : path_(parent + "/ckptd-test-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_TESTING_TEMP_DIR_H_
