#include "tests/integration/loop_disk.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "gtest/gtest.h"
#include "tests/integration/process.h"

namespace ckptd::harness {
namespace {

// Once for the process: later mounts are seen by it and by what it starts, and go with them.
bool EnterNamespace() {
  (void)BinaryDirectory();  // while it can still be told
  static const bool entered =
      unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  return entered;
}

bool Run(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

int Control(const std::string& path, unsigned long request) {
  int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -1;
  int result = ioctl(fd, request, 0);
  close(fd);
  return result;
}

// Waits until the other end of `pipe` is closed, by whatever ends the test.
[[noreturn]] void Guard(int pipe, const std::string& path) {
  prctl(PR_SET_NAME, "thaw-guard");
  char byte = 0;
  while (read(pipe, &byte, 1) > 0) {
  }
  Control(path, FITHAW);
  _exit(0);
}

}  // namespace

LoopDisk::LoopDisk(uint64_t megabytes) {
  std::string base = "/tmp/ckptd-disk-XXXXXX";
  if (mkdtemp(base.data()) == nullptr) {
    skipped_ = "skipped: no folder for the disk";
    return;
  }
  path_ = base;
  image_ = base + ".img";
  const std::string size = std::to_string(megabytes) + "M";
  if (!EnterNamespace()) {
    skipped_ = "skipped: this test needs root, for a mount namespace of its own";
  } else if (!Run("truncate -s " + size + " " + image_ + " && mkfs.ext4 -q -F " + image_)) {
    skipped_ = "skipped: this test needs mkfs.ext4";
  } else if (!Run("mount -o loop " + image_ + " " + path_)) {
    skipped_ = "skipped: this test needs a loop device";
  }
  if (!skipped_.empty()) return;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
  guard_ = fork();
  if (guard_ == 0) {
    close(ends[1]);
    Guard(ends[0], path_);
  }
  close(ends[0]);
  guard_pipe_ = ends[1];
}

LoopDisk::~LoopDisk() {
  if (mounted()) {
    close(guard_pipe_);
    waitpid(guard_, nullptr, 0);
    umount2(path_.c_str(), MNT_DETACH);
  }
  rmdir(path_.c_str());
  unlink(image_.c_str());
}

void LoopDisk::Freeze() const { EXPECT_EQ(Control(path_, FIFREEZE), 0) << path_; }
void LoopDisk::Thaw() const { EXPECT_EQ(Control(path_, FITHAW), 0) << path_; }

}  // namespace ckptd::harness
