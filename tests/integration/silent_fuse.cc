#include "tests/integration/silent_fuse.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace ckptd::harness {
namespace {

constexpr uint64_t kFile = 2;  // its node; the root is 1

void Answer(int device, const fuse_in_header& request, const void* body, size_t size, int error = 0) {
  fuse_out_header head{};
  head.len = static_cast<uint32_t>(sizeof head + size);
  head.unique = request.unique;
  head.error = -error;
  const iovec parts[] = {{&head, sizeof head}, {const_cast<void*>(body), size}};
  (void)!writev(device, parts, size == 0 ? 1 : 2);
}

fuse_attr AttributesOf(uint64_t node) {
  fuse_attr attributes{};
  attributes.ino = node;
  attributes.mode = node == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0666;
  attributes.nlink = 1;
  attributes.size = node == FUSE_ROOT_ID ? 0 : 4096;
  return attributes;
}

template <typename Body>
void Tell(int device, const fuse_in_header& request, const Body& body) {
  Answer(device, request, &body, sizeof body);
}

// What it takes to open the file; all else waits for ever.
void Serve(int device, const fuse_in_header& request) {
  if (request.opcode == FUSE_INIT) {
    fuse_init_out init{};
    init.major = FUSE_KERNEL_VERSION;
    init.minor = FUSE_KERNEL_MINOR_VERSION;
    init.max_write = 4096;
    Tell(device, request, init);
  } else if (request.opcode == FUSE_LOOKUP) {
    fuse_entry_out entry{};
    entry.nodeid = kFile;
    entry.entry_valid = entry.attr_valid = 3600;
    entry.attr = AttributesOf(kFile);
    Tell(device, request, entry);
  } else if (request.opcode == FUSE_GETATTR) {
    fuse_attr_out out{};
    out.attr_valid = 3600;
    out.attr = AttributesOf(request.nodeid);
    Tell(device, request, out);
  } else if (request.opcode == FUSE_OPEN) {
    Tell(device, request, fuse_open_out{});
  }
}

[[noreturn]] void ServeFor(int device) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alignas(8) char request[64 << 10];
  for (;;) {
    const ssize_t got = read(device, request, sizeof request);
    if (got < 0 && errno != EINTR && errno != ENOENT) _exit(0);
    fuse_in_header head{};
    if (got < static_cast<ssize_t>(sizeof head)) continue;
    std::memcpy(&head, request, sizeof head);
    Serve(device, head);
  }
}

}  // namespace

SilentFuse::SilentFuse() {
  const int device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (device < 0) {
    skipped_ = std::string("skipped: /dev/fuse: ") + strerror(errno);
    return;
  }
  path_ = "/tmp/ckptd-fuse-XXXXXX";
  if (mkdtemp(path_.data()) == nullptr) std::abort();
  const std::string options = "fd=" + std::to_string(device) + ",rootmode=40000,user_id=0,group_id=0,allow_other";
  mounted_ = mount("silent", path_.c_str(), "fuse", MS_NODEV | MS_NOSUID, options.c_str()) == 0;
  if (!mounted_) skipped_ = std::string("skipped: mounting FUSE: ") + strerror(errno);
  server_ = mounted_ ? fork() : -1;
  if (server_ == 0) ServeFor(device);
  close(device);
}

SilentFuse::~SilentFuse() {
  End();
  if (!covered_.empty()) umount2(covered_.c_str(), MNT_DETACH);
  if (mounted_) umount2(path_.c_str(), MNT_DETACH);
  if (!path_.empty()) rmdir(path_.c_str());
}

int SilentFuse::Open() const { return open((path_ + "/file").c_str(), O_RDWR | O_CLOEXEC); }

bool SilentFuse::Cover(const std::string& path) {
  struct stat there {};
  if (stat(path.c_str(), &there) != 0) return false;
  const std::string mine = S_ISDIR(there.st_mode) ? path_ : path_ + "/file";
  if (mount(mine.c_str(), path.c_str(), nullptr, MS_BIND, nullptr) != 0) return false;
  covered_ = path;
  return true;
}

void SilentFuse::End() {
  if (server_ <= 0) return;
  kill(server_, SIGKILL);
  waitpid(server_, nullptr, 0);
  server_ = -1;
}

}  // namespace ckptd::harness
