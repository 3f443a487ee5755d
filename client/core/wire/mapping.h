// Shared mappings. No mapping is inherited by a forked child (MADV_DONTFORK): a DataLoader worker must
// neither pin a region's memory nor be able to write into a slot.
// The agent's own Mapping (daemon/os) is another class, and some programs link both.
#ifndef CKPTD_CLIENT_CORE_WIRE_MAPPING_H_
#define CKPTD_CLIENT_CORE_WIRE_MAPPING_H_

#include <cstddef>
#include <cstdint>
#include <utility>

namespace ckptd {

enum class Access : uint8_t { kRead, kReadWrite };

class SharedMapping {
 public:
  SharedMapping() = default;
  SharedMapping(SharedMapping&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  SharedMapping& operator=(SharedMapping&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~SharedMapping();

  // 0 or an errno. The file must hold at least `bytes`: the caller asks FileBytes first.
  [[nodiscard]] static int Map(int fd, uint64_t bytes, Access access, SharedMapping* out);

  // Makes every page present, so that no later access faults. 0 or an errno.
  [[nodiscard]] int Populate(Access access) { return Populate(access, 0, bytes_); }
  [[nodiscard]] int Populate(Access access, uint64_t offset, uint64_t bytes);  // of these, from a page's beginning

  // Stays mapped until the process ends.
  void Leave() { address_ = nullptr; }

  [[nodiscard]] char* data() const { return static_cast<char*>(address_); }
  [[nodiscard]] uint64_t size() const { return bytes_; }

 private:
  void* address_ = nullptr;
  size_t bytes_ = 0;
};

// 0 or an errno.
[[nodiscard]] int FileBytes(int fd, uint64_t* bytes);

// Exactly `bytes` from `offset`. 0 or an errno; EIO when the file ends before.
[[nodiscard]] int ReadExactly(int fd, uint64_t offset, void* into, uint64_t bytes);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_WIRE_MAPPING_H_
