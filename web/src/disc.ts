/** Draw an example image: a white disc on black. */
export function disc(): string {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 64;
  const pen = canvas.getContext("2d")!;
  pen.fillStyle = "black";
  pen.fillRect(0, 0, 64, 64);
  pen.fillStyle = "white";
  pen.arc(32, 32, 20, 0, 2 * Math.PI);
  pen.fill();
  return canvas.toDataURL("image/png");
}
