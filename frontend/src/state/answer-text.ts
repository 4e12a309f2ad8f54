// Text in answers comes from profiles, and is shown beside our own.

// They turn the direction of the text that follows, ours and its numbers included.
const TURNING = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

// As they are, or escaped.
const MAY_TURN = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]|\\u(?:061c|20(?:0[ef]|2[a-e]|6[6-9]))/i;

/** The content of an answer, without characters that change how other text is shown. */
export function parseAnswer(text: string): unknown {
  // Looking at each value takes ten times as long, which counts for the events of a timeline.
  if (!MAY_TURN.test(text)) return JSON.parse(text);
  return JSON.parse(text, (_, value: unknown) =>
    typeof value === "string" ? value.replace(TURNING, "\ufffd") : value,
  );
}
