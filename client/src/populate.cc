#include "client/src/populate.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "client/core/threads/cores.h"
#include "client/core/threads/sync.h"

namespace ckptd {
namespace {

constexpr uint64_t kPiece = 16 << 20;
constexpr uint32_t kMostHelpers = 7;

struct Population {
  SharedMapping& mapping;
  std::atomic<uint64_t> next{0};  // byte
  std::atomic<int> error{0};      // an errno

  static void Run(void* self) noexcept {
    auto& all = *static_cast<Population*>(self);
    while (all.error.load(std::memory_order_relaxed) == 0) {
      const uint64_t at = all.next.fetch_add(kPiece, std::memory_order_relaxed);
      if (at >= all.mapping.size()) return;
      const uint64_t bytes = std::min(kPiece, all.mapping.size() - at);
      if (int error = all.mapping.Populate(Access::kReadWrite, at, bytes)) all.error.store(error);
    }
  }
};

}  // namespace

int PopulateTogether(SharedMapping& mapping) {
  Population all{mapping};
  const uint64_t pieces = (mapping.size() + kPiece - 1) / kPiece;
  const uint64_t wanted = std::min<uint64_t>({pieces, UsableCores() / 2, kMostHelpers});
  const auto broke = [](void*, const char*) noexcept {};  // Run throws nothing
  std::array<Thread, kMostHelpers> helpers;
  for (uint64_t i = 0; i < wanted; ++i) {
    if (!helpers[i].Start("ckpt-populate", &Population::Run, broke, &all)) break;  // fewer do it too
  }
  Population::Run(&all);
  for (Thread& helper : helpers) helper.Join();
  return all.error.load();
}

}  // namespace ckptd
