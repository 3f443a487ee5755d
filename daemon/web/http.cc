#include "daemon/web/http.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"

namespace ckptd {
namespace {

const char* Reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 421:
      return "Misdirected Request";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Internal Server Error";
  }
}

HttpRequest Refuse(int status, absl::string_view sentence) {
  HttpRequest request;
  request.state = HttpRequest::kRefused;
  request.refusal.status = status;
  request.refusal.body = absl::StrCat(sentence, "\n");
  return request;
}

bool IsText(absl::string_view line) {
  return std::all_of(line.begin(), line.end(), [](unsigned char c) { return c == '\t' || (c >= 0x20 && c != 0x7F); });
}

// "localhost", "127.0.0.1" or "[::1]", with or without a port.
bool IsLoopbackHost(absl::string_view value) {
  absl::string_view host = value;
  size_t colon = host.rfind(':');
  if (colon != absl::string_view::npos && host.find(']', colon) == absl::string_view::npos)
    host = host.substr(0, colon);
  return absl::EqualsIgnoreCase(host, "localhost") || host == "127.0.0.1" || host == "[::1]";
}

struct Header {
  absl::string_view name;
  absl::string_view value;
};

// False when the line is not "name: value".
bool SplitHeader(absl::string_view line, Header* header) {
  size_t colon = line.find(':');
  if (colon == absl::string_view::npos || colon == 0 || !IsText(line)) return false;
  header->name = line.substr(0, colon);
  header->value = absl::StripAsciiWhitespace(line.substr(colon + 1));
  return !absl::StrContains(header->name, ' ') && !absl::StrContains(header->name, '\t');
}

// Of the header lines only Host matters here; all must be well formed.
HttpRequest CheckHeaders(absl::Span<const absl::string_view> lines, HttpRequest request) {
  int hosts = 0;
  bool loopback = false;
  for (absl::string_view line : lines) {
    Header header;
    if (!SplitHeader(line, &header)) return Refuse(400, "a header line is malformed");
    if (!absl::EqualsIgnoreCase(header.name, "host")) continue;
    ++hosts;
    loopback = IsLoopbackHost(header.value);
  }
  if (hosts != 1) return Refuse(400, "exactly one Host is needed");
  if (!loopback) return Refuse(421, "this page answers on localhost only");
  return request;
}

HttpRequest ParseHead(absl::string_view head) {
  std::vector<absl::string_view> lines = absl::StrSplit(head, "\r\n");
  std::vector<absl::string_view> words = absl::StrSplit(lines[0], ' ');
  if (words.size() != 3 || !IsText(lines[0])) return Refuse(400, "the request line is malformed");
  if (!absl::StartsWith(words[2], "HTTP/")) return Refuse(400, "the request line is malformed");
  if (words[2] != "HTTP/1.1" && words[2] != "HTTP/1.0") return Refuse(505, "HTTP/1.1 is spoken here");
  if (words[0] != "GET" && words[0] != "HEAD") return Refuse(405, "GET and HEAD only");
  if (!absl::StartsWith(words[1], "/")) return Refuse(400, "the path must begin with /");
  HttpRequest request;
  request.state = HttpRequest::kComplete;
  request.path = std::string(words[1].substr(0, words[1].find('?')));
  request.head = words[0] == "HEAD";
  return CheckHeaders(absl::MakeConstSpan(lines).subspan(1), std::move(request));
}

}  // namespace

HttpRequest ParseHttpRequest(absl::string_view received, size_t limit) {
  size_t end = received.substr(0, limit).find("\r\n\r\n");
  if (end != absl::string_view::npos) return ParseHead(received.substr(0, end));
  if (received.size() >= limit) return Refuse(431, "the request is too long");
  return HttpRequest();
}

std::string HttpResponseText(const HttpResponse& response, bool head) {
  std::string text =
      absl::StrCat("HTTP/1.1 ", response.status, " ", Reason(response.status),
                   "\r\nContent-Type: ", response.content_type, "\r\nContent-Length: ", response.body.size(),
                   "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n",
                   response.status == 405 ? "Allow: GET, HEAD\r\n" : "", "\r\n");
  if (!head) text += response.body;
  return text;
}

}  // namespace ckptd
