// The caller's table of tensors, checked and copied, so that a layout can be compared with and rebuilt from it.
#ifndef CKPTD_CLIENT_SRC_TABLE_H_
#define CKPTD_CLIENT_SRC_TABLE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "client/include/ckpt/ckpt.h"

namespace ckptd {

inline constexpr uint64_t kMaxTensors = uint64_t{1} << 20;

// Everything that decides the layout; addresses and flags do not.
struct Table {
  std::string names;
  std::vector<uint64_t> name_ends;
  std::vector<uint8_t> dtypes;
  std::vector<uint32_t> dims;
  std::vector<uint64_t> shapes;
  std::vector<uint64_t> shard_offsets;  // empty, or as long as shapes
  std::string aliases;
  std::vector<uint64_t> alias_ends;
  std::vector<uint64_t> alias_of;

  [[nodiscard]] uint64_t count() const { return name_ends.size(); }
  [[nodiscard]] std::string_view name(uint64_t i) const { return Piece(names, name_ends, i); }
  [[nodiscard]] std::string_view alias(uint64_t i) const { return Piece(aliases, alias_ends, i); }
  bool operator==(const Table&) const = default;

 private:
  static std::string_view Piece(const std::string& text, const std::vector<uint64_t>& ends, uint64_t i) {
    uint64_t begin = i == 0 ? 0 : ends[i - 1];
    return std::string_view(text).substr(begin, ends[i] - begin);
  }
};

// 0 or a negative code with its sentence.
int32_t CopyTable(const ckpt_table& from, Table* out);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_TABLE_H_
