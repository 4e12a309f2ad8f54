// Text in answers comes from profiles, and is shown beside our own.

// They turn the direction of the text that follows, ours and its numbers included.
const TURNING = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** The content of an answer, without characters that change how other text is shown. */
export function parseAnswer(text: string): unknown {
  return JSON.parse(text, (_, value: unknown) =>
    typeof value === "string" ? value.replace(TURNING, "\ufffd") : value,
  );
}
