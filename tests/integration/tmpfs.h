// A small file system in memory, for tests of what is full or read-only.
#ifndef CKPTD_TESTS_INTEGRATION_TMPFS_H_
#define CKPTD_TESTS_INTEGRATION_TMPFS_H_

#include <sys/mount.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace ckptd::harness {

// Mounted as long as this lives, over a folder of its own or `over`; not mounted() where that is not allowed.
class Tmpfs {
 public:
  explicit Tmpfs(const std::string& size, const std::string& over = "") : path_(over), own_(over.empty()) {
    std::string path = "/tmp/ckptd-tmpfs-XXXXXX";
    if (own_ && mkdtemp(path.data()) == nullptr) return;
    if (own_) path_ = path;
    mounted_ = mount("tmpfs", path_.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
  }
  ~Tmpfs() {
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
    if (own_) rmdir(path_.c_str());
  }
  Tmpfs(const Tmpfs&) = delete;
  Tmpfs& operator=(const Tmpfs&) = delete;
  [[nodiscard]] bool mounted() const { return mounted_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] bool ReadOnly(bool on, const std::string& size) const {
    unsigned long flags = MS_REMOUNT | (on ? MS_RDONLY : 0);
    return mount("tmpfs", path_.c_str(), "tmpfs", flags, ("size=" + size).c_str()) == 0;
  }
  [[nodiscard]] bool Resize(const std::string& size) const { return ReadOnly(false, size); }

 private:
  std::string path_;
  const bool own_;
  bool mounted_ = false;
};

inline constexpr char kNoMount[] = "skipped: this test needs root, to mount a small tmpfs";

}  // namespace ckptd::harness

#endif  // CKPTD_TESTS_INTEGRATION_TMPFS_H_
