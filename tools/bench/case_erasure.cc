// Parity and what is rebuilt from it, beside ISA-L alone over the same memory, on one core. What both leave is
// compared.
#include <isa-l/erasure_code.h>

#include <algorithm>
#include <climits>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "daemon/erasure/code.h"
#include "daemon/erasure/decoder.h"
#include "daemon/erasure/encoder.h"
#include "tools/bench/cases.h"
#include "tools/bench/measure.h"
#include "tools/bench/room.h"

namespace ckptd::bench {
namespace {

using erasure::Bytes;
using erasure::Code;
using erasure::ConstBytes;
using erasure::Decoder;
using erasure::Encoder;
using erasure::PieceBytes;
using erasure::Shape;

constexpr Shape kXor = {4, 1};
constexpr Shape kReedSolomon = {4, 2};
constexpr uint64_t kImageBytes = 128 * kMiB;
constexpr uint64_t kChunk = 4 * kMiB;
constexpr uint64_t kReserve = 256 * kMiB;
constexpr char kIsal[] = "ec_encode_data of ISA-L in one call over the same memory";

// A stripe of equal images and its parity, and memory for what is rebuilt.
struct Stripe {
  Stripe(const Code& stripe_code, uint64_t bytes, uint64_t chunk_bytes)
      : code(stripe_code), chunk(chunk_bytes), data(shape().data), parity(shape().parity), rebuilt(shape().parity) {
    for (auto* images : {&data, &parity, &rebuilt}) {
      for (auto& image : *images) image.assign(bytes, std::byte(7 * (&image - images->data()) + 1));
    }
  }

  [[nodiscard]] const Shape& shape() const { return code.shape(); }
  [[nodiscard]] uint64_t bytes() const { return data[0].size(); }

  const Code& code;
  uint64_t chunk;
  std::vector<std::vector<std::byte>> data, parity, rebuilt;
};

template <typename Run, typename Images>
std::vector<Run> Pieces(Images& images, uint64_t offset, uint64_t bytes) {
  std::vector<Run> pieces;
  pieces.reserve(images.size());
  for (auto& image : images) pieces.push_back(Run(image).subspan(offset, PieceBytes(image.size(), offset, bytes)));
  return pieces;
}

absl::Status EncodeByChunks(Stripe& stripe) {
  for (uint64_t offset = 0; offset < stripe.bytes(); offset += stripe.chunk) {
    CKPTD_RETURN_IF_ERROR(stripe.code.Encode(Pieces<ConstBytes>(stripe.data, offset, stripe.chunk),
                                             Pieces<Bytes>(stripe.parity, offset, stripe.chunk)));
  }
  return absl::OkStatus();
}

// As captures that run beside each other bring them.
absl::Status FoldByChunks(Stripe& stripe) {
  const Encoder::Layout layout = {std::vector<uint64_t>(stripe.shape().data, stripe.bytes()), stripe.chunk};
  CKPTD_ASSIGN_OR_RETURN(Encoder encoder,
                         Encoder::Make(stripe.code, layout, {stripe.parity.begin(), stripe.parity.end()}));
  for (uint64_t chunk = 0; chunk < encoder.chunks(); ++chunk) {
    const uint64_t offset = chunk * stripe.chunk;
    const std::vector<ConstBytes> pieces = Pieces<ConstBytes>(stripe.data, offset, stripe.chunk);
    for (uint32_t member = 0; member < pieces.size(); ++member)
      CKPTD_RETURN_IF_ERROR(encoder.Fold(member, chunk, pieces[member]));
  }
  return encoder.complete() ? absl::OkStatus() : Error(ErrorCode::INTERNAL, "parity is not complete");
}

// The first m data members, of the others and all parity.
std::vector<ConstBytes> Survivors(const Stripe& stripe, uint64_t offset, uint64_t bytes) {
  std::vector<ConstBytes> pieces = Pieces<ConstBytes>(stripe.data, offset, bytes);
  pieces.erase(pieces.begin(), pieces.begin() + stripe.shape().parity);
  for (ConstBytes piece : Pieces<ConstBytes>(stripe.parity, offset, bytes)) pieces.push_back(piece);
  return pieces;
}

absl::Status RebuildByChunks(Stripe& stripe) {
  std::vector<uint32_t> lost(stripe.shape().parity);
  std::iota(lost.begin(), lost.end(), 0);
  CKPTD_ASSIGN_OR_RETURN(Decoder decoder, Decoder::Make(stripe.code, lost, lost));
  for (uint64_t offset = 0; offset < stripe.bytes(); offset += stripe.chunk) {
    CKPTD_RETURN_IF_ERROR(
        decoder.Rebuild(Survivors(stripe, offset, stripe.chunk), Pieces<Bytes>(stripe.rebuilt, offset, stripe.chunk)));
  }
  return absl::OkStatus();
}

// The identity and, below it, the parity rows, by ISA-L.
std::vector<unsigned char> Generator(const Shape& shape) {
  std::vector<unsigned char> rows(size_t{shape.members()} * shape.data);
  gf_gen_cauchy1_matrix(rows.data(), static_cast<int>(shape.members()), static_cast<int>(shape.data));
  if (shape.parity == 1) std::fill(rows.end() - shape.data, rows.end(), 1);
  return rows;
}

// ISA-L alone: as many rows as outputs.
void RunIsal(std::span<unsigned char> rows, const std::vector<ConstBytes>& sources,
             std::vector<std::vector<std::byte>>& into) {
  const int columns = static_cast<int>(sources.size());
  const int count = static_cast<int>(into.size());
  std::vector<unsigned char> tables(32 * sources.size() * into.size());
  std::vector<unsigned char*> from, to;
  for (ConstBytes source : sources)
    from.push_back(reinterpret_cast<unsigned char*>(const_cast<std::byte*>(source.data())));
  for (auto& image : into) to.push_back(reinterpret_cast<unsigned char*>(image.data()));
  ec_init_tables(columns, count, rows.data(), tables.data());
  ec_encode_data(static_cast<int>(into[0].size()), columns, count, tables.data(), from.data(), to.data());
}

absl::Status EncodeByIsal(Stripe& stripe) {
  std::vector<unsigned char> rows = Generator(stripe.shape());
  const size_t identity = size_t{stripe.shape().data} * stripe.shape().data;
  RunIsal(std::span(rows).subspan(identity), Pieces<ConstBytes>(stripe.data, 0, stripe.bytes()), stripe.parity);
  return absl::OkStatus();
}

absl::Status RebuildByIsal(Stripe& stripe) {
  const Shape& shape = stripe.shape();
  std::vector<unsigned char> rows = Generator(shape);
  std::vector<unsigned char> inverse(size_t{shape.data} * shape.data);
  rows.erase(rows.begin(), rows.begin() + static_cast<ptrdiff_t>(size_t{shape.parity} * shape.data));  // the lost ones'
  if (gf_invert_matrix(rows.data(), inverse.data(), static_cast<int>(shape.data)) != 0)
    return Error(ErrorCode::INTERNAL, "ISA-L cannot invert its matrix");
  RunIsal(inverse, Survivors(stripe, 0, stripe.bytes()), stripe.rebuilt);
  return absl::OkStatus();
}

using Way = std::function<absl::Status(Stripe&)>;

// Seconds of one go, which leaves `result`. Its sum is the same after each go of either, or one of them is wrong.
absl::StatusOr<double> Time(const Way& way, Stripe& stripe, const std::vector<std::vector<std::byte>>& result,
                            uint32_t* sum) {
  const TimePoint begin = Now();
  CKPTD_RETURN_IF_ERROR(way(stripe));
  const double seconds = SecondsSince(begin);
  uint32_t crc = 0;
  for (const auto& image : result) crc = Crc32c(crc, image.data(), image.size());
  if (*sum != 0 && *sum != crc) return Error(ErrorCode::INTERNAL, "ckptd and ISA-L do not agree");
  *sum = crc;
  return seconds;
}

struct Erasure {
  const char* name;
  Shape shape;
  Way ours;
  Way limit;
  bool rebuilds;
  const char* what;
};

absl::StatusOr<Line> Measured(const Erasure& one, const Options& options) {
  const uint64_t bytes =
      std::min<uint64_t>(options.bytes != 0 ? options.bytes : kImageBytes, INT_MAX);  // ISA-L's limit
  const uint64_t needed = (one.shape.members() + one.shape.parity) * bytes + kReserve;
  if (needed > AvailableMemory())
    return Line{one.name, "", "", {}, absl::StrCat("needs ", FormatBytes(needed), " of memory: --bytes")};
  CKPTD_ASSIGN_OR_RETURN(Code code, Code::Make(one.shape));
  Stripe stripe(code, bytes, options.chunk != 0 ? options.chunk : kChunk);
  CKPTD_RETURN_IF_ERROR(EncodeByIsal(stripe));
  const auto& result = one.rebuilds ? stripe.rebuilt : stripe.parity;
  const double done = static_cast<double>(bytes) / 1e9 * (one.rebuilds ? one.shape.parity : one.shape.data);
  uint32_t sum = 0;
  const auto rate = [&](const Way& way) -> absl::StatusOr<double> {
    CKPTD_ASSIGN_OR_RETURN(double seconds, Time(way, stripe, result, &sum));
    return done / seconds;
  };
  CKPTD_ASSIGN_OR_RETURN(Comparison found, Alternate(
                                               options.RoundsOr(kRounds), [&] { return rate(one.ours); },
                                               [&] { return rate(one.limit); }));
  return Line{one.name, "GB/s",
              absl::StrCat(kIsal, "; ours: ", one.what, ", ", ToString(one.shape), ", images of ", FormatBytes(bytes),
                           ", chunks of ", FormatBytes(stripe.chunk)),
              found};
}

absl::StatusOr<Lines> MeasuredAll(std::span<const Erasure> all, const Options& options) {
  Lines lines;
  for (const Erasure& one : all) {
    CKPTD_ASSIGN_OR_RETURN(Line line, Measured(one, options));
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace

absl::StatusOr<Lines> ErasureEncode(const Options& options) {
  const Erasure all[] = {
      {"erasure.encode", kReedSolomon, EncodeByChunks, EncodeByIsal, false, "bytes of data encoded chunk by chunk"},
      {"erasure.encode.xor", kXor, EncodeByChunks, EncodeByIsal, false, "bytes of data encoded chunk by chunk"},
      {"erasure.encode.folded", kReedSolomon, FoldByChunks, EncodeByIsal, false,
       "bytes of data folded in one image's chunk after the other"}};
  return MeasuredAll(all, options);
}

absl::StatusOr<Lines> ErasureRebuild(const Options& options) {
  const Erasure all[] = {
      {"erasure.rebuild", kReedSolomon, RebuildByChunks, RebuildByIsal, true, "bytes of two lost images rebuilt"},
      {"erasure.rebuild.xor", kXor, RebuildByChunks, RebuildByIsal, true, "bytes of one lost image rebuilt"}};
  return MeasuredAll(all, options);
}

}  // namespace ckptd::bench
