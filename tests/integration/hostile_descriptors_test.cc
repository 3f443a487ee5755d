// Descriptors of another user that are not what they should be: the agent refuses them, hangs at none and keeps none.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/core/copy/crc32c.h"
#include "tests/integration/fill.h"
#include "tests/integration/hostile.h"
#include "tests/integration/silent_fuse.h"

namespace ckptd::harness {
namespace {

class Descriptors : public Hostile {
 protected:
  // A LAYOUT of a joined trainer with this descriptor; the sentence of the refusal.
  [[nodiscard]] std::function<std::string()> LayoutWith(std::function<int()> make) const {
    return [socket = socket_, make = std::move(make)] {
      auto* trainer = new RawTrainer(socket);  // stays open
      trainer->Join("enemy");
      LayoutMessage layout{};
      layout.ticket = 77;
      layout.header_bytes = ImageHeader().size();
      layout.image_count = 1;
      layout.header_crc = Crc32c(0, ImageHeader().data(), ImageHeader().size());
      trainer->Say(MessageType::kLayout, layout, {make()});
      return trainer->NextError();
    };
  }
};

int Memory(size_t size, int seals) {
  const int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (ftruncate(fd, static_cast<off_t>(size)) != 0 || fcntl(fd, F_ADD_SEALS, seals) != 0) return -1;
  return fd;
}

constexpr int kAll = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;

TEST_F(Descriptors, ThatAreNoSealedMemoryAreRefused) {
  const std::vector<std::pair<const char*, std::function<int()>>> bad = {
      {"pipe",
       [] {
         int ends[2];
         return pipe(ends) == 0 ? ends[0] : -1;
       }},
      {"socket", [] { return socket(AF_UNIX, SOCK_STREAM, 0); }},
      {"eventfd", [] { return eventfd(0, 0); }},
      {"/dev/zero", [] { return open("/dev/zero", O_RDWR); }},
      {"O_PATH", [] { return open("/tmp", O_PATH); }},
      {"folder", [] { return open("/tmp", O_RDONLY | O_DIRECTORY); }},
      {"file", [] { return open("/tmp", O_TMPFILE | O_RDWR, 0600); }},
      {"not sealed", [] { return Memory(4096, F_SEAL_SEAL); }},
      {"may shrink", [] { return Memory(4096, kAll & ~F_SEAL_SHRINK); }},
      {"may be written", [] { return Memory(4096, kAll & ~F_SEAL_WRITE); }},
      {"empty", [] { return Memory(0, kAll); }},
      {"huge and sparse", [] { return Memory(size_t{1} << 40, kAll); }},
  };
  for (const auto& [name, make] : bad) ExpectHears(name, "received descriptor", LayoutWith(make));
  ExpectHears("zeros, as large as headers may be", "layout: ", LayoutWith([] { return Memory(512 << 20, kAll); }));
  EndAndCount(nullptr);
}

// The kernel asks the server of a FUSE file at each close(), and waits for its answer.
TEST_F(Descriptors, OfAFileSystemThatNeverAnswersHoldNobodyUp) {
  SilentFuse fuse;
  if (!fuse.skipped().empty()) GTEST_SKIP() << fuse.skipped();
  const int file = fuse.Open();
  ASSERT_GE(file, 0);
  std::string said;
  auto one = Begin("with a LAYOUT", LayoutWith([file] { return file; }), &said);
  auto two = Begin(
      "with a HELLO",
      [this, file] {
        auto* trainer = new RawTrainer(socket_);
        HelloMessage hello{};
        hello.min_major = hello.max_major = 1;
        trainer->Say(MessageType::kHello, hello, {file, file, file});
        return std::string(trainer->Next(MessageType::kHelloReply, Millis(2000)) ? "answered" : "nothing");
      },
      &said);
  fuse.End();
  close(file);
  one.reset();
  EndAndCount(std::move(two));
}

}  // namespace
}  // namespace ckptd::harness
